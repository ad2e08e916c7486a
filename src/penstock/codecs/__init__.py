"""Bytes to arrays and back: image codecs, the choice of buffer compression, and what kind of bytes these are."""

from penstock.codecs._compression import Compression
from penstock.codecs._format import MAX_PIXELS, Mode
from penstock.codecs._image import IMAGE_CODECS, ImageCodec, decode_image
from penstock.codecs._sniff import sniff

__all__ = ["IMAGE_CODECS", "MAX_PIXELS", "Compression", "ImageCodec", "Mode", "decode_image", "sniff"]
