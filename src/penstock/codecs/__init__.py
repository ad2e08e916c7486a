"""Encode and decode images, audio and video; choose buffer compression; detect media formats."""

from penstock.codecs._audio import decode_audio
from penstock.codecs._compression import Compression
from penstock.codecs._errors import MAX_DECODED_BYTES
from penstock.codecs._format import MAX_PIXELS, ColorMode
from penstock.codecs._image import (
    IMAGE_CODECS,
    ImageCodec,
    decode_image,
    decode_image_into,
    decode_images,
    decode_images_into,
    image_size,
)
from penstock.codecs._sniff import sniff
from penstock.codecs._video import decode_video
from penstock.codecs._video_frames import decode_video_frames

__all__ = [
    "IMAGE_CODECS",
    "MAX_DECODED_BYTES",
    "MAX_PIXELS",
    "ColorMode",
    "Compression",
    "ImageCodec",
    "decode_audio",
    "decode_image",
    "decode_image_into",
    "decode_images",
    "decode_images_into",
    "decode_video",
    "decode_video_frames",
    "image_size",
    "sniff",
]
