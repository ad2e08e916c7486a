"""Detect media formats from their first bytes."""

from typing import Final

from penstock.types import Buffer

_HEAD_BYTES: Final = 64
_PREFIXES: Final = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mp3",
}
_RIFF_FORMATS: Final = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_BMP_HEADER_BYTES: Final = {12, 16, 40, 52, 56, 64, 108, 124}
_IMAGE_BRANDS: Final = {b"avif", b"avis", b"heic", b"heim", b"heis", b"heix", b"hevc", b"hevx", b"mif1", b"msf1"}


def sniff(data: Buffer) -> str | None:
    """The format that the first bytes indicate, or None; the remaining bytes are not checked."""
    head = bytes(memoryview(data)[:_HEAD_BYTES])
    for prefix, name in _PREFIXES.items():
        if head.startswith(prefix):
            return name
    if head[:4] in (b"RIFF", b"RF64"):
        return _RIFF_FORMATS.get(head[8:12])
    if head[4:8] == b"ftyp":
        return None if head[8:12] in _IMAGE_BRANDS else "mp4"
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "webm" if b"\x42\x82\x84webm" in head else None
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADER_BYTES:
        return "bmp"
    return "mp3" if _is_mp3_frame(head) else None


def _is_mp3_frame(head: bytes) -> bool:
    """Eleven sync bits, layer III, and no reserved version, bit rate or sample rate."""
    return (
        len(head) >= 4
        and head[0] == 0xFF
        and head[1] & 0xE6 == 0xE2
        and head[1] & 0x18 != 0x08
        and head[2] & 0xF0 != 0xF0
        and head[2] & 0x0C != 0x0C
    )
