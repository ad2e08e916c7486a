"""Format detection from the first bytes."""

import io
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import ImageCodec, sniff


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "bmp", "gif"])
def test_encoded_images(name: str) -> None:
    shape = (3, 4) if name == "gif" else (3, 4, 3)
    data = ImageCodec(name).encode(np.zeros(shape, np.uint8))
    assert sniff(data) == sniff(bytearray(data)) == sniff(memoryview(data)) == name


def test_wav() -> None:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
    assert sniff(stream.getvalue()) == "wav"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"MM\0*\0\0\0\x08", "tiff"),
        (b"II+\0\x08\0\0\0", "tiff"),
        (b"RF64\xff\xff\xff\xffWAVEds64", "wav"),
        (b"RIFF\x24\0\0\0AVI LIST", "avi"),
        (b"RIFF\x24\0\0\0ACON", None),
        (b"fLaC\0\0\0\x22", "flac"),
        (b"OggS\0\x02", "ogg"),
        (b"ID3\x04\0\0", "mp3"),
        (b"\xff\xfb\x90\x64", "mp3"),
        (b"\xff\xf3\x84\xc4", "mp3"),
        (b"\xff\xf1\x50\x80", None),  # AAC in ADTS
        (b"\xff\xfb\xf0\x64", None),  # no such bit rate
        (b"\0\0\0\x20ftypisom", "mp4"),
        (b"\0\0\0\x14ftypqt  ", "mp4"),
        (b"\0\0\0\x1cftypavif", None),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webmB\x87\x81\x04", "webm"),
        (b"\x1aE\xdf\xa3\xa3B\x86\x81\x01B\x82\x88matroska", None),
        (b"BM means something else entirely", None),
        (b"", None),
    ],
)
def test_signatures(head: bytes, kind: str | None) -> None:
    assert sniff(head) == kind


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    kinds = ["jpeg", "png", "webp", "gif", "bmp", "tiff", "wav", "flac", "mp3", "ogg", "mp4", "webm", "avi"]
    assert sniff(data) in (None, *kinds)
