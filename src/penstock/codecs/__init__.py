"""Bytes to arrays and back: images, sound, video, buffer compression, and what kind of bytes these are."""

from penstock.codecs._audio import decode_audio
from penstock.codecs._compression import Compression
from penstock.codecs._format import MAX_PIXELS, Mode
from penstock.codecs._gate import MAX_DECODED_BYTES
from penstock.codecs._image import (
    IMAGE_CODECS,
    ImageCodec,
    decode_image,
    decode_image_into,
    decode_images_into,
    image_size,
)
from penstock.codecs._sniff import sniff
from penstock.codecs._video import decode_video

__all__ = [
    "IMAGE_CODECS",
    "MAX_DECODED_BYTES",
    "MAX_PIXELS",
    "Compression",
    "ImageCodec",
    "Mode",
    "decode_audio",
    "decode_image",
    "decode_image_into",
    "decode_images_into",
    "decode_video",
    "image_size",
    "sniff",
]
