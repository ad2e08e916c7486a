"""Decoding into the rows of a batch."""

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from penstock.codecs import ColorMode, ImageCodec, decode_image, decode_image_into, decode_images_into, image_size
from penstock.errors import InvalidInputError, SampleError

CHANNELS = {"jpeg": [1, 3], "png": [1, 3, 4], "webp": [3, 4], "tiff": [1, 3, 4], "bmp": [1, 3], "gif": [1]}
MODES: dict[int, ColorMode] = {1: "L", 3: "RGB", 4: "RGBA"}
NAMES = st.sampled_from(list(CHANNELS))


def shape_of(height: int, width: int, channels: int) -> tuple[int, ...]:
    return (height, width) if channels == 1 else (height, width, channels)


def noise(height: int, width: int, channels: int, dtype: Any = np.uint8) -> NDArray[Any]:
    top = np.iinfo(dtype).max
    return np.random.default_rng(0).integers(0, top, shape_of(height, width, channels), dtype, endpoint=True)


def slope(height: int, width: int, channels: int) -> NDArray[np.uint8]:
    plane = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 120, width)).astype(np.uint8)
    return np.repeat(plane[..., None], channels, axis=2).reshape(shape_of(height, width, channels))


@given(
    name=NAMES, height=st.integers(1, 40), width=st.integers(1, 40), channels=st.sampled_from([1, 3, 4]), data=st.data()
)
@settings(deadline=None)
def test_matches_decode_image(name: str, height: int, width: int, channels: int, data: st.DataObject) -> None:
    stored = data.draw(st.sampled_from(CHANNELS[name]))
    encoded = ImageCodec(name).encode(noise(height, width, stored))
    assert image_size(encoded)[:2] == (height, width)
    expected = decode_image(encoded, mode=MODES[channels])
    shapes = [(height, width, channels)] + [(height, width)] * (channels == 1)
    for shape in shapes:
        for resize in (False, True):
            batch = np.full((3, *shape), 7, np.uint8)
            decode_image_into(memoryview(encoded), batch[1], resize=resize)
            assert np.array_equal(batch[1], expected.reshape(shape))
            assert (batch[[0, 2]] == 7).all()


@given(
    name=NAMES,
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    out_size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    channels=st.sampled_from([1, 3, 4]),
    data=st.data(),
)
@settings(deadline=None)
def test_another_size_is_rejected_or_resized(
    name: str, size: tuple[int, int], out_size: tuple[int, int], channels: int, data: st.DataObject
) -> None:
    stored = data.draw(st.sampled_from(CHANNELS[name]))
    encoded = ImageCodec(name).encode(np.full(shape_of(*size, stored), 200, np.uint8))
    out = np.zeros(shape_of(*out_size, channels), np.uint8)
    if size != out_size:
        with pytest.raises(SampleError, match=rf"\({size[0]}, {size[1]}.*\({out_size[0]}, {out_size[1]}"):
            decode_image_into(encoded, out)
    decode_image_into(encoded, out, resize=True)
    expected = decode_image(encoded, mode=MODES[channels])
    assert np.abs(out.astype(int) - expected[0, 0]).max() <= 2


@pytest.mark.parametrize("name", list(CHANNELS))
@pytest.mark.parametrize("out_size", [(50, 60), (40, 40), (7, 9), (130, 100), (10, 100), (300, 5)])
def test_resizing_matches_pillow(name: str, out_size: tuple[int, int]) -> None:
    image = slope(96, 120, CHANNELS[name][-1])
    encoded = ImageCodec(name).encode(image)
    out = np.zeros((*out_size, 3), np.uint8)
    decode_image_into(encoded, out, resize=True)
    whole = Image.fromarray(decode_image(encoded, mode="RGB"))
    expected = np.asarray(whole.resize(out_size[::-1], Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(out - expected).max() <= 6
    assert np.abs(out - expected).mean() <= 1.5


@pytest.mark.parametrize("name", list(CHANNELS))
def test_downscaling_does_not_alias(name: str) -> None:
    checks = np.kron(np.indices((80, 80)).sum(axis=0) % 2, np.ones((2, 2), int)).astype(np.uint8) * 255
    image = checks if CHANNELS[name] == [1] else np.repeat(checks[..., None], 3, axis=2)
    out = np.zeros((9, 11), np.uint8)
    decode_image_into(ImageCodec(name).encode(image), out, resize=True)
    assert np.abs(out.astype(int) - 127).max() <= 12


@pytest.mark.parametrize("name", ["png", "tiff"])
def test_16_bit_gray(name: str) -> None:
    image = noise(6, 5, 1, np.uint16)
    encoded = ImageCodec(name).encode(image)
    assert image_size(encoded) == (6, 5, 1)
    for shape in ((6, 5), (6, 5, 1)):
        out = np.zeros(shape, np.uint16)
        decode_image_into(encoded, out)
        assert np.array_equal(out.reshape(6, 5), image)
    small = np.zeros((6, 5), np.uint8)
    decode_image_into(encoded, small)
    assert np.array_equal(small, image >> 8)
    with pytest.raises(SampleError, match="buffer"):
        decode_image_into(encoded, np.zeros((5, 6), np.uint16))
    wide = np.zeros((40, 30), np.uint16)
    decode_image_into(ImageCodec(name).encode(np.full((11, 17), 40_000, np.uint16)), wide, resize=True)
    assert (wide == 40_000).all()


@pytest.mark.parametrize("name", list(CHANNELS))
@pytest.mark.parametrize("resize", [False, True])
def test_8_bits_are_not_decoded_into_16(name: str, resize: bool) -> None:
    encoded = ImageCodec(name).encode(noise(4, 4, CHANNELS[name][0]))
    for shape in ((4, 4), (4, 4, 1)) + ((2, 2),) * resize:
        with pytest.raises(SampleError, match="uint16"):
            decode_image_into(encoded, np.zeros(shape, np.uint16), resize=resize)


@pytest.mark.parametrize("name", list(CHANNELS))
@pytest.mark.parametrize("out_size", [(12, 20), (5, 6)])
def test_truncated(name: str, out_size: tuple[int, int]) -> None:
    data = ImageCodec(name).encode(noise(12, 20, CHANNELS[name][-1]))
    out = np.zeros((*out_size, 3), np.uint8)
    for end in range(len(data)):
        with pytest.raises(SampleError):
            decode_image_into(data[:end], out, resize=True)


@pytest.mark.parametrize("out_size", [(16, 24), (8, 9), (40, 30)])
def test_jpegs_that_fall_back_to_pillow(out_size: tuple[int, int]) -> None:
    cmyk, subsampled = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (24, 16), (200, 100, 50)).convert("CMYK").save(cmyk, "JPEG", quality=95)
    Image.new("RGB", (24, 16), (128, 128, 128)).save(subsampled, "JPEG", keep_rgb=True, subsampling=0)
    unusual = bytearray(subsampled.getvalue())
    unusual[unusual.index(b"\xff\xc0") + 14] = 0x21
    for data, colour in ((cmyk.getvalue(), (200, 100, 50)), (unusual, (128, 128, 128))):
        out = np.zeros((*out_size, 3), np.uint8)
        decode_image_into(data, out, resize=True)
        assert np.abs(out.astype(int) - colour).max() <= 6


def test_a_jpeg_of_matching_size_decodes_without_a_temporary() -> None:
    data = ImageCodec("jpeg").encode(slope(512, 512, 3))
    batch = np.zeros((2, 512, 512, 3), np.uint8)
    decode_image_into(data, batch[0])
    tracemalloc.start()
    try:
        decode_image_into(data, batch[1])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert np.array_equal(batch[0], batch[1])


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((4, 4, 3), np.float32),
        np.zeros(16, np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros((8, 4, 3), np.uint8)[::2],
        np.frombuffer(bytes(48), np.uint8).reshape(4, 4, 3),
    ],
)
def test_invalid_output_arrays(out: NDArray[Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"decodes into|decode into"):
        decode_image_into(ImageCodec("png").encode(noise(4, 4, 3)), out)


@pytest.mark.parametrize("data", [b"", b"not an image at all" * 9, b"fLaC\0\0\0\x22"])
def test_invalid_bytes(data: bytes) -> None:
    for read in (image_size, decode_image, lambda data: decode_image_into(data, np.zeros((4, 4), np.uint8))):
        with pytest.raises(SampleError, match="expected an image"):
            read(data)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("resize", [False, True])
def test_a_mixed_batch(channels: int, resize: bool) -> None:
    """The same result as image by image; rows of invalid or missing images are zeros."""
    jpeg = ImageCodec("jpeg").encode(noise(16, 24, 3))
    images = [jpeg, None, jpeg[:-40], ImageCodec("png").encode(noise(16, 24, 3)), b"no image", jpeg]
    images += [ImageCodec("jpeg").encode(slope(24, 16, 3)), ImageCodec("jpeg").encode(slope(8, 8, 1))]
    out = np.full((len(images), 16, 24, channels), 7, np.uint8)
    errors = decode_images_into(images, out, resize=resize)
    for index, image in enumerate(images):
        alone = np.zeros_like(out[0])
        if index in errors:
            with pytest.raises(SampleError) as caught:
                decode_image_into(image or b"", alone, resize=resize)
            assert str(caught.value) == str(errors[index])
            alone[:] = 0
        elif image is not None:
            decode_image_into(image, alone, resize=resize)
        assert np.array_equal(out[index], alone)
    assert errors.keys() == ({2, 4} if resize else {2, 4, 6, 7})
    assert decode_images_into([], out[:0]) == {}
