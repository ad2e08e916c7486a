"""The conformance suite of image codecs: subclass `CodecTests`, set its layouts, and run pytest."""

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
    """The dtypes and channel counts the codec supports, such as `(("uint8", 3),)`."""
    tolerance: ClassVar[float] = 0.0
    """Largest mean difference of a smooth image after a round trip; 0 for a lossless codec."""

    def new_codec(self) -> ImageCodec:
        """The codec under test."""
        raise NotImplementedError

    def images(self, sizes: tuple[tuple[int, int], ...] = _SIZES) -> Iterator[NDArray[Any]]:
        """One image of each size and layout: noise for a lossless codec, gradients for a lossy one."""
        rng = np.random.default_rng(0)
        for dtype, channels in self.layouts:
            top = np.iinfo(dtype).max
            for height, width in sizes:
                shape = (height, width) if channels == 1 else (height, width, channels)
                if self.tolerance == 0:
                    yield rng.integers(0, top, shape, dtype, endpoint=True)
                else:
                    gradient = np.add.outer(np.arange(height), np.arange(width)) / (height + width)
                    yield np.broadcast_to(
                        (gradient * top).astype(dtype).reshape(height, width, 1), (*gradient.shape, channels)
                    ).reshape(shape)

    def test_round_trip(self) -> None:
        """Shape and dtype survive a round trip, and pixels do exactly or within the tolerance."""
        codec = self.new_codec()
        for image in self.images():
            decoded = codec.decode(codec.encode(image))
            assert (decoded.shape, decoded.dtype) == (image.shape, image.dtype)
            assert np.abs(decoded.astype(float) - image.astype(float)).mean() <= self.tolerance
            assert decoded.flags.writeable

    def test_strided_input(self) -> None:
        """A view encodes like its copy; HxWx1 encodes like HxW."""
        codec = self.new_codec()
        for image in self.images(((8, 10),)):
            assert codec.encode(image[::2, ::-1]) == codec.encode(image[::2, ::-1].copy())
            if image.ndim == 2:
                assert codec.encode(image[..., None]) == codec.encode(image)

    def test_image_size(self) -> None:
        """`image_size` returns the shape that decoding gives."""
        codec = self.new_codec()
        for image in self.images():
            assert codec.image_size(codec.encode(image)) == np.atleast_3d(image).shape

    def test_modes(self) -> None:
        """Every codec decodes to every color mode, in 8 bits."""
        codec = self.new_codec()
        for image in self.images(((5, 3),)):
            data = codec.encode(image)
            assert codec.decode(data, mode="L").shape == (5, 3)
            assert codec.decode(data, mode="RGB").shape == (5, 3, 3)
            assert codec.decode(data, mode="RGBA").shape == (5, 3, 4)
            assert codec.decode(data, mode="L").dtype == np.uint8

    def test_decode_into(self) -> None:
        """`decode_into` gives the same pixels as `decode`, in every mode."""
        codec = self.new_codec()
        for image in self.images():
            data = codec.encode(image)
            for mode in (None, "L", "RGB", "RGBA"):
                expected = codec.decode(data, mode=mode)
                out = np.zeros_like(expected)
                codec.decode_into(data, out, mode=mode)
                assert np.array_equal(out, expected)

    def test_decode_into_another_shape(self) -> None:
        """A buffer of another shape or dtype raises `SampleError`."""
        codec = self.new_codec()
        for image in self.images(((5, 3),)):
            data = codec.encode(image)
            for shape in ((5, 4, *image.shape[2:]), (3, 5, *image.shape[2:]), (5, 3, 2), (image.size,)):
                with pytest.raises(SampleError, match="buffer"):
                    codec.decode_into(data, np.zeros(shape, image.dtype))
            with pytest.raises(SampleError, match="buffer"):
                codec.decode_into(data, np.zeros(image.shape, np.float32))
            with pytest.raises(InvalidInputError, match="contiguous"):
                codec.decode_into(data, np.zeros((10, *image.shape[1:]), image.dtype)[::2])

    def test_any_buffer(self) -> None:
        """Every buffer type is accepted."""
        codec = self.new_codec()
        for image in self.images(((5, 3),)):
            data = codec.encode(image)
            expected = codec.decode(data)
            signed = memoryview(data).cast("b")  # what pyarrow's buffers look like
            for buffer in (bytearray(data), memoryview(b"x" + data)[1:], signed):
                assert np.array_equal(codec.decode(buffer), expected)
                assert codec.image_size(buffer) == codec.image_size(data)

    def test_truncated(self) -> None:
        """Truncation at any offset raises `SampleError`, and never returns a partial image."""
        codec = self.new_codec()
        for image in self.images(((1, 1), (9, 5))):
            data = codec.encode(image)
            for end in range(len(data)):
                with pytest.raises(SampleError):
                    codec.decode(data[:end])

    def test_invalid_bytes(self) -> None:
        """Bytes of no image format raise `SampleError`."""
        for data in (b"", b"\0", b"not an image at all" * 9):
            with pytest.raises(SampleError):
                self.new_codec().decode(data)
            with pytest.raises(SampleError):
                self.new_codec().image_size(data)

    def test_unsupported_arrays(self) -> None:
        """An unsupported array raises an error that lists the supported layouts."""
        shapes = ((4, 4, 2), (4, 4, 5), (4,), (0, 4), (4, 0, 3), (1, 4, 4, 3))
        arrays: list[NDArray[Any]] = [np.zeros(shape, np.uint8) for shape in shapes]
        for array in (*arrays, np.zeros((4, 4), np.float32)):
            with pytest.raises(InvalidInputError, match=self.layouts[0][0]):
                self.new_codec().encode(array)

    def test_threads(self) -> None:
        """Codecs are thread-safe."""
        codec = self.new_codec()
        encoded = [codec.encode(image) for image in self.images()] * 8
        with ThreadPoolExecutor(8) as pool:
            decoded = list(pool.map(codec.decode, encoded))
        for data, pixels in zip(encoded, decoded, strict=True):
            assert np.array_equal(pixels, codec.decode(data))
