"""The exam of an image codec: subclass `CodecTests`, say what it takes, and run pytest."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.codecs import ImageCodec
from penstock.errors import InvalidInputError, SampleError

_SIZES = ((1, 1), (1, 7), (7, 1), (8, 8), (13, 17), (33, 50))


class CodecTests:
    """What every image codec must do; if a codec disagrees with this list, the codec is wrong."""

    layouts: ClassVar[tuple[tuple[str, int], ...]]
    """The dtypes and channel counts the codec takes, such as `(("uint8", 3),)`."""
    tolerance: ClassVar[float] = 0.0
    """Largest mean difference of a smooth picture after a round trip; 0 for a lossless codec."""

    def new_codec(self) -> ImageCodec:
        """The codec under examination."""
        raise NotImplementedError

    def pictures(self, sizes: tuple[tuple[int, int], ...] = _SIZES) -> Iterator[NDArray[Any]]:
        """One picture of each size and layout: noise for a lossless codec, slopes for a lossy one."""
        rng = np.random.default_rng(0)
        for dtype, channels in self.layouts:
            top = np.iinfo(dtype).max
            for height, width in sizes:
                shape = (height, width) if channels == 1 else (height, width, channels)
                if self.tolerance == 0:
                    yield rng.integers(0, top, shape, dtype, endpoint=True)
                else:
                    slope = np.add.outer(np.arange(height), np.arange(width)) / (height + width)
                    yield np.broadcast_to(
                        (slope * top).astype(dtype).reshape(height, width, 1), (*slope.shape, channels)
                    ).reshape(shape)

    def test_round_trip(self) -> None:
        """Pixels come back with shape and dtype: exactly, or within the tolerance."""
        codec = self.new_codec()
        for picture in self.pictures():
            decoded = codec.decode(codec.encode(picture))
            assert (decoded.shape, decoded.dtype) == (picture.shape, picture.dtype)
            assert np.abs(decoded.astype(float) - picture.astype(float)).mean() <= self.tolerance
            assert decoded.flags.writeable

    def test_strided_input(self) -> None:
        """A view encodes like its copy, and one channel may be written out as an axis."""
        codec = self.new_codec()
        for picture in self.pictures(((8, 10),)):
            assert codec.encode(picture[::2, ::-1]) == codec.encode(picture[::2, ::-1].copy())
            if picture.ndim == 2:
                assert codec.encode(picture[..., None]) == codec.encode(picture)

    def test_image_size(self) -> None:
        """The header tells what decoding gives."""
        codec = self.new_codec()
        for picture in self.pictures():
            assert codec.image_size(codec.encode(picture)) == np.atleast_3d(picture).shape

    def test_modes(self) -> None:
        """Every codec converts to every mode, in 8 bits."""
        codec = self.new_codec()
        for picture in self.pictures(((5, 3),)):
            data = codec.encode(picture)
            assert codec.decode(data, mode="L").shape == (5, 3)
            assert codec.decode(data, mode="RGB").shape == (5, 3, 3)
            assert codec.decode(data, mode="RGBA").shape == (5, 3, 4)
            assert codec.decode(data, mode="L").dtype == np.uint8

    def test_decode_into(self) -> None:
        """Decoding into a buffer gives what decoding gives, in every mode."""
        codec = self.new_codec()
        for picture in self.pictures():
            data = codec.encode(picture)
            for mode in (None, "L", "RGB", "RGBA"):
                expected = codec.decode(data, mode=mode)
                out = np.zeros_like(expected)
                codec.decode_into(data, out, mode=mode)
                assert np.array_equal(out, expected)

    def test_decode_into_another_shape(self) -> None:
        """A buffer that does not fit exactly is refused."""
        codec = self.new_codec()
        for picture in self.pictures(((5, 3),)):
            data = codec.encode(picture)
            for shape in ((5, 4, *picture.shape[2:]), (3, 5, *picture.shape[2:]), (5, 3, 2), (picture.size,)):
                with pytest.raises(SampleError, match="buffer"):
                    codec.decode_into(data, np.zeros(shape, picture.dtype))
            with pytest.raises(SampleError, match="buffer"):
                codec.decode_into(data, np.zeros(picture.shape, np.float32))
            with pytest.raises(InvalidInputError, match="contiguous"):
                codec.decode_into(data, np.zeros((10, *picture.shape[1:]), picture.dtype)[::2])

    def test_any_buffer(self) -> None:
        """Bytes are read from whatever holds them."""
        codec = self.new_codec()
        for picture in self.pictures(((5, 3),)):
            data = codec.encode(picture)
            expected = codec.decode(data)
            signed = memoryview(data).cast("b")  # what pyarrow's buffers look like
            for buffer in (bytearray(data), memoryview(b"x" + data)[1:], signed):
                assert np.array_equal(codec.decode(buffer), expected)
                assert codec.image_size(buffer) == codec.image_size(data)

    def test_truncated(self) -> None:
        """Wherever the bytes are cut, the sample is bad, never half an image."""
        codec = self.new_codec()
        for picture in self.pictures(((1, 1), (9, 5))):
            data = codec.encode(picture)
            for cut in range(len(data)):
                with pytest.raises(SampleError):
                    codec.decode(data[:cut])

    def test_other_bytes(self) -> None:
        """Bytes of another kind are a bad sample."""
        for data in (b"", b"\0", b"not an image at all" * 9):
            with pytest.raises(SampleError):
                self.new_codec().decode(data)
            with pytest.raises(SampleError):
                self.new_codec().image_size(data)

    def test_refuses_other_arrays(self) -> None:
        """What cannot be written is refused by a message that says what can."""
        shapes = ((4, 4, 2), (4, 4, 5), (4,), (0, 4), (4, 0, 3), (1, 4, 4, 3))
        arrays: list[NDArray[Any]] = [np.zeros(shape, np.uint8) for shape in shapes]
        for array in (*arrays, np.zeros((4, 4), np.float32)):
            with pytest.raises(InvalidInputError, match=self.layouts[0][0]):
                self.new_codec().encode(array)

    def test_threads(self) -> None:
        """One codec serves many threads at once."""
        codec = self.new_codec()
        encoded = [codec.encode(picture) for picture in self.pictures()] * 8
        with ThreadPoolExecutor(8) as pool:
            decoded = list(pool.map(codec.decode, encoded))
        for data, pixels in zip(encoded, decoded, strict=True):
            assert np.array_equal(pixels, codec.decode(data))
