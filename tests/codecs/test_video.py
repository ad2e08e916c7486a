"""Video round trips in frame count, size and color; invalid files raise SampleError."""

import io
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.codecs import MAX_PIXELS, decode_video
from penstock.codecs._video import decode_video_within
from penstock.errors import InvalidInputError, SampleError

LOSSY = [("mp4", "mpeg4", "yuv420p"), ("webm", "libvpx", "yuv420p"), ("avi", "mjpeg", "yuvj420p")]


def slopes(frames: int, height: int, width: int) -> NDArray[np.uint8]:
    """Smooth moving color images."""
    time, y, x = np.ogrid[:frames, :height, :width]
    planes = np.broadcast_arrays(2 * y + 4 * time, 2 * x + 30, 3 * time + y + x)
    return np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)


def encoded(
    frames: Iterable[NDArray[np.uint8]],
    kind: tuple[str, str, str],
    *,
    rate: Fraction = Fraction(25),
    to: Path | None = None,
) -> bytes:
    """Video of one size; an mp4 written to a file starts with its index."""
    images = list(frames)
    stream = io.BytesIO()
    options = {"movflags": "faststart"} if to else {}
    with av.open(to or stream, "w", format=kind[0], options=options) as container:
        video = container.add_stream(kind[1], rate=rate)
        assert isinstance(video, av.VideoStream)
        video.height, video.width = images[0].shape[:2]
        video.pix_fmt = kind[2]
        for image in images:
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode(None))
    return to.read_bytes() if to else stream.getvalue()


@given(
    frames=st.integers(1, 6),
    height=st.integers(16, 40),
    width=st.integers(16, 40),
    rate=st.sampled_from([Fraction(10), Fraction(30000, 1001)]),
)
@settings(max_examples=20, deadline=None)
def test_lossless(frames: int, height: int, width: int, rate: Fraction) -> None:
    images = np.random.default_rng(0).integers(0, 256, (frames, height, width, 3), np.uint8)
    decoded, decoded_rate = decode_video(encoded(images, ("matroska", "ffv1", "bgr0"), rate=rate))
    assert np.array_equal(decoded, images)
    assert decoded_rate == pytest.approx(float(rate), rel=1e-2)


@pytest.mark.parametrize("kind", LOSSY)
def test_lossy(kind: tuple[str, str, str]) -> None:
    images = slopes(12, 48, 64)
    data = encoded(images, kind)
    decoded, rate = decode_video(data)
    assert (decoded.shape, decoded.dtype.name, rate) == (images.shape, "uint8", 25.0)
    assert np.abs(decoded.astype(int) - images).mean() < 8
    for buffer in (bytearray(data), memoryview(b"x" + data)[1:], memoryview(data).cast("b")):
        assert np.array_equal(decode_video(buffer)[0], decoded)


@pytest.mark.parametrize("kind", [*LOSSY, ("matroska", "ffv1", "yuv420p")])
def test_truncated(kind: tuple[str, str, str], tmp_path: Path) -> None:
    # An mp4 with its index at the end decodes without the last bytes of the index.
    data = encoded(slopes(6, 32, 32), kind, to=tmp_path / "video" if kind[0] == "mp4" else None)
    for end in range(0, len(data), 3):
        with pytest.raises(SampleError, match="cannot decode video"):
            decode_video(data[:end])


@pytest.mark.parametrize("kind", LOSSY)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_flipped_bytes_raise_nothing_but_sample_error(kind: tuple[str, str, str], data: st.DataObject) -> None:
    corrupt = bytearray(encoded(slopes(4, 32, 32), kind))
    offsets = st.integers(0, len(corrupt) - 1)
    for offset, value in data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6)):
        corrupt[offset] = value
    try:
        frames, rate = decode_video(corrupt)
    except SampleError:
        return
    assert frames.shape[3] == 3
    assert rate >= 0


def test_a_concealed_frame_raises_sample_error() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    data = bytearray(encoded(noise, ("mp4", "mpeg4", "yuv420p")))
    middle = data.index(b"mdat") + 2000
    data[middle : middle + 200] = bytes(200)
    with pytest.raises(SampleError, match="is damaged"):
        decode_video(data)


def test_frames_of_different_sizes() -> None:
    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        video = container.add_stream("mjpeg", rate=25)
        assert isinstance(video, av.VideoStream)
        video.width, video.height, video.pix_fmt = 64, 48, "yuvj420p"
        for number, (height, width) in enumerate([(48, 64), (48, 64), (32, 96)]):
            encoder = av.CodecContext.create("mjpeg", "w")
            assert isinstance(encoder, av.VideoCodecContext)
            encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
            encoder.time_base = Fraction(1, 25)
            image = av.VideoFrame.from_ndarray(np.full((height, width, 3), 90, np.uint8))
            for packet in [*encoder.encode(image.reformat(format="yuvj420p")), *encoder.encode(None)]:
                packet.stream, packet.time_base = video, Fraction(1, 25)
                packet.pts = packet.dts = number
                container.mux(packet)
    with pytest.raises(SampleError, match="not all of one size"):
        decode_video(stream.getvalue())


def test_decompression_bombs_are_rejected() -> None:
    data = encoded(slopes(4, 48, 64), ("matroska", "ffv1", "yuv420p"))
    size = 4 * 48 * 64 * 3
    assert decode_video_within(data, max_bytes=size)[0].nbytes == size
    with pytest.raises(SampleError, match=f"{size} bytes of memory; the limit is {size - 1}"):
        decode_video_within(data, max_bytes=size - 1)


def test_frames_above_the_pixel_limit_are_rejected() -> None:
    data = encoded(slopes(2, 300, 300), ("matroska", "ffv1", "yuv420p"))
    for element in (b"\xb0", b"\xba"):  # PixelWidth, PixelHeight
        assert data.count(element + b"\x82\x01\x2c") == 1
        data = data.replace(element + b"\x82\x01\x2c", element + b"\x82" + (10_000).to_bytes(2, "big"))
    with pytest.raises(SampleError, match=f"10000 x 10000 pixels; the limit is {MAX_PIXELS}"):
        decode_video(data)


@pytest.mark.parametrize("data", [b"", b"\0", b"not a video at all" * 9])
def test_invalid_bytes(data: bytes) -> None:
    with pytest.raises(SampleError, match=f"cannot decode video, {len(data)} bytes: FFmpeg says"):
        decode_video(data)


def test_a_file_without_a_video_stream() -> None:
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(4800), 48000, format="OGG", subtype="VORBIS")
    with pytest.raises(SampleError, match="no video stream"):
        decode_video(stream.getvalue())


@pytest.mark.parametrize("playlist", ["ffconcat version 1.0\nfile {}\n", "#EXTM3U\n#EXTINF:5,\n{}\n#EXT-X-ENDLIST\n"])
def test_a_playlist_opens_no_other_file(playlist: str, tmp_path: Path) -> None:
    other = tmp_path / "other.mp4"
    encoded(slopes(2, 32, 32), ("mp4", "mpeg4", "yuv420p"), to=other)
    with pytest.raises(SampleError):
        decode_video(playlist.format(other).encode())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidInputError, match=r"av: pip install 'penstock\[video\]'"):
        decode_video(b"")
