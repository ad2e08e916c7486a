"""Each image codec against the conformance suite, and format-specific behaviour."""

import io
import subprocess
import sys
import zlib
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from penstock.codecs import MAX_PIXELS, ImageCodec
from penstock.errors import InvalidInputError, SampleError
from penstock.testing._codecs import CodecTests

GRAY, RGB, RGBA, GRAY16 = ("uint8", 1), ("uint8", 3), ("uint8", 4), ("uint16", 1)
CODECS = ("jpeg", "png", "webp", "tiff", "bmp", "gif")


class TestJpeg(CodecTests):
    layouts = (GRAY, RGB)
    tolerance = 3.0

    def new_codec(self) -> ImageCodec:
        return ImageCodec("jpeg", 95)


class TestPng(CodecTests):
    layouts = (GRAY, RGB, RGBA, GRAY16)

    def new_codec(self) -> ImageCodec:
        return ImageCodec("png", 1)


class TestWebp(CodecTests):
    layouts = (RGB, RGBA)
    tolerance = 4.0

    def new_codec(self) -> ImageCodec:
        return ImageCodec("webp", 95)


class TestTiff(CodecTests):
    layouts = (GRAY, RGB, RGBA, GRAY16)

    def new_codec(self) -> ImageCodec:
        return ImageCodec("tiff")


class TestBmp(CodecTests):
    layouts = (GRAY, RGB)

    def new_codec(self) -> ImageCodec:
        return ImageCodec("bmp")


class TestGif(CodecTests):
    layouts = (GRAY,)

    def new_codec(self) -> ImageCodec:
        return ImageCodec("gif")


def saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def image(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    shape = (12, 20) if name == "gif" else (12, 20, 3)
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


ENCODED = {name: ImageCodec(name).encode(image(name)) for name in CODECS}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_flipped_bytes_raise_nothing_but_sample_error(name: str, data: st.DataObject) -> None:
    corrupt = bytearray(ENCODED[name])
    # Most bytes are pixels; corrupt headers reach more code paths.
    offsets = st.integers(0, min(64, len(corrupt) - 1)) | st.integers(0, len(corrupt) - 1)
    for offset, value in data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6)):
        corrupt[offset] = value
    codec = ImageCodec(name)
    try:
        pixels = codec.decode(corrupt)
    except SampleError:
        return
    assert np.atleast_3d(pixels).shape == codec.image_size(corrupt)


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)))
@pytest.mark.parametrize("name", ["png", "tiff", "bmp", "gif"])
def test_lossless(name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    codec = ImageCodec(name)
    assert np.array_equal(codec.decode(codec.encode(array)), array)


def test_cmyk_jpeg_decodes_as_rgb() -> None:
    colour = Image.fromarray(np.full((9, 7, 3), (200, 100, 50), np.uint8))
    data = saved(colour.convert("CMYK"), "JPEG", quality=95)
    codec = ImageCodec("jpeg")
    assert codec.image_size(data) == (9, 7, 3)
    assert np.abs(codec.decode(data).astype(int) - (200, 100, 50)).max() <= 6
    out = np.zeros((9, 7), np.uint8)
    codec.decode_into(data, out, mode="L")
    assert np.ptp(out) == 0
    adobe = data.index(b"Adobe") + 11
    ycck = data[:adobe] + b"\2" + data[adobe + 1 :]
    expected = np.asarray(Image.open(io.BytesIO(ycck)).convert("RGB"))
    assert np.abs(codec.decode(ycck).astype(int) - expected).max() <= 2


def test_progressive_jpeg() -> None:
    data = saved(Image.fromarray(image("jpeg")), "JPEG", progressive=True)
    assert ImageCodec("jpeg").decode(data).shape == (12, 20, 3)
    for end in range(len(data)):
        with pytest.raises(SampleError):
            ImageCodec("jpeg").decode(data[:end])


def test_jpeg_with_unusual_subsampling_falls_back_to_pillow() -> None:
    data = bytearray(saved(Image.new("RGB", (16, 16), (128, 128, 128)), "JPEG", keep_rgb=True, subsampling=0))
    frame = data.index(b"\xff\xc0")
    data[frame + 14] = 0x21
    codec = ImageCodec("jpeg")
    assert codec.image_size(data) == (16, 16, 3)
    assert (codec.decode(data) == 128).all()
    for end in range(len(data)):
        with pytest.raises(SampleError):
            codec.decode(data[:end])


def test_jpeg_orientation_is_not_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert ImageCodec("jpeg").decode(saved(Image.new("L", (20, 10)), "JPEG", exif=exif)).shape == (10, 20)


def test_palettes_decode_as_color() -> None:
    palette = Image.new("P", (3, 2))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    plain, clear = saved(palette, "PNG"), saved(palette, "PNG", transparency=b"\x80\xff")
    codec = ImageCodec("png")
    assert codec.decode(plain)[0, 0].tolist() == [10, 20, 30]
    assert codec.decode(clear)[0, 0].tolist() == [10, 20, 30, 128]
    assert codec.decode(clear, mode="RGB")[0, 0].tolist() == [10, 20, 30]
    assert codec.image_size(plain) == (2, 3, 3)
    assert codec.image_size(clear) == (2, 3, 4)


def test_16_bit_gray_converts_to_8_bits() -> None:
    codec = ImageCodec("png")
    data = codec.encode(np.array([[0, 256, 65535]], ">u2"))
    assert codec.decode(data).tolist() == [[0, 256, 65535]]
    assert codec.decode(data, mode="L").tolist() == [[0, 1, 255]]


def test_float_pixels_raise_sample_error() -> None:
    data = saved(Image.new("F", (2, 2)), "TIFF")
    with pytest.raises(SampleError, match="mode F"):
        ImageCodec("tiff").decode(data)


@pytest.mark.parametrize(
    ("name", "offsets", "order"),
    [
        ("jpeg", [(ENCODED["jpeg"].index(b"\xff\xc0") + 5, 2), (ENCODED["jpeg"].index(b"\xff\xc0") + 7, 2)], "big"),
        ("png", [(16, 4), (20, 4)], "big"),
        ("webp", [(26, 2), (28, 2)], "little"),
        ("tiff", [(18, 4), (30, 4)], "little"),
        ("bmp", [(18, 4), (22, 4)], "little"),
        ("gif", [(6, 2), (8, 2)], "little"),
    ],
)
def test_decompression_bombs_are_rejected(
    name: str, offsets: list[tuple[int, int]], order: Literal["big", "little"]
) -> None:
    data = bytearray(ENCODED[name])
    for start, length in offsets:
        data[start : start + length] = (10_000).to_bytes(length, order)
    if name == "png":
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(SampleError, match=f"10000 x 10000 pixels; the limit is {MAX_PIXELS}"):
        ImageCodec(name).decode(data)


def test_a_format_mismatch_names_the_detected_format() -> None:
    with pytest.raises(SampleError, match="expected jpeg, found png"):
        ImageCodec("jpeg").decode(ENCODED["png"])


def test_an_image_above_the_size_limit_of_the_format() -> None:
    with pytest.raises(InvalidInputError, match="cannot encode"):
        ImageCodec("webp").encode(np.zeros((1, 20000, 3), np.uint8))


def test_pillow_warnings_are_silenced() -> None:
    truncated = ImageCodec("tiff").encode(np.zeros((2, 2), np.uint8))[:60]
    script = f"""
from penstock.codecs import ImageCodec
try:
    ImageCodec("tiff").decode({truncated!r})
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("SampleError\n", "")


def test_unknown_mode() -> None:
    with pytest.raises(InvalidInputError, match="RGBA"):
        ImageCodec("png").decode(ENCODED["png"], mode="CMYK")  # type: ignore[arg-type]
