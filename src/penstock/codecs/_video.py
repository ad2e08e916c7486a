"""Decode video with FFmpeg, through the PyAV package of the `video` extra."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._errors import MAX_DECODED_BYTES, check_decoded_bytes, missing_extra, translate_errors
from penstock.codecs._format import MAX_PIXELS, check_pixels
from penstock.errors import SampleError
from penstock.types import Buffer

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer

VideoFrames: TypeAlias = tuple[NDArray[np.uint8], float]

# FFmpeg also reads playlists, which can open any file or URL; these containers hold only streams.
_CONTAINERS: Final = ("avi", "flv", "matroska", "mov", "mpeg", "mpegts", "ogg", "webm")


def decode_video(data: Buffer) -> VideoFrames:
    """Return the main video stream as uint8 RGB (frames, height, width, 3), and its frame rate.

    Every frame is returned once, whatever its duration; the rate is the average, or 0 if unknown. Rotation is not
    applied. Raises `SampleError` for invalid bytes, for frames that FFmpeg had to conceal, and for truncated files if
    the container reveals it. Raises `InvalidInputError` without the `video` extra.
    """
    return decode_video_within(data, max_bytes=MAX_DECODED_BYTES)


def decode_video_within(data: Buffer, *, max_bytes: int) -> VideoFrames:
    """`decode_video` with a limit on the decoded size."""
    with open_video_stream(data) as (container, stream):
        frames: list[VideoFrame] = []
        for frame in decoded_frames(container, stream):
            frames.append(frame)
            check_decoded_bytes(len(frames) * frame.height * frame.width * 3, max_bytes)
        if not frames:
            raise SampleError("it has no frames")
        return rgb_pixels(frames), float(stream.average_rate or stream.guessed_rate or 0)


@contextmanager
def open_video_stream(data: Buffer) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    """The main video stream of a file, ready to be decoded; translates errors, and checks that the file is whole."""
    try:
        import av
    except ImportError as cause:
        raise missing_extra("av", "video") from cause
    with translate_errors(SampleError, f"cannot decode video, {len(data)} bytes"):
        whole = bytes(data)
        try:
            with av.open(BytesIO(whole), "r", options={"format_whitelist": ",".join(_CONTAINERS)}) as container:
                stream = container.streams.best("video")
                if not isinstance(stream, av.VideoStream) or stream.codec_context is None:
                    raise SampleError("it has no video stream that FFmpeg can decode")
                context = stream.codec_context
                check_pixels(context.height, context.width)
                context.options = {"max_pixels": str(MAX_PIXELS)}  # the size may change within a stream
                context.thread_count = 1  # callers decode many samples in parallel
                yield container, stream
                end = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
                if max(end, _declared_end(whole)) > len(whole):
                    raise SampleError("the end of the file is missing")
        # Includes a MemoryError: invalid headers request any amount. Its str() includes the stream object.
        except av.FFmpegError as cause:
            raise SampleError(f"FFmpeg says {cause.strerror!r}") from cause


def decoded_frames(container: "InputContainer", stream: "VideoStream") -> Iterator["VideoFrame"]:
    """Frames in presentation order, in FFmpeg's own pixel format, which takes half the memory of RGB.

    Raises `SampleError` for damaged frames, and for frames of different sizes.
    """
    count, size = 0, None
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise SampleError(f"the bytes after frame {count} are damaged")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise SampleError(f"frame {count} is damaged")
            count, size = count + 1, size or (frame.height, frame.width)
            if (frame.height, frame.width) != size:
                raise SampleError("its frames are not all of one size")
            yield frame


def rgb_pixels(frames: Sequence["VideoFrame"]) -> NDArray[np.uint8]:
    """Frames of one size as uint8 RGB (frames, height, width, 3)."""
    from av.video.reformatter import VideoReformatter

    reformatter = VideoReformatter()
    out = np.empty((len(frames), frames[0].height, frames[0].width, 3), np.uint8)
    for row, frame in zip(out, frames, strict=True):
        row[...] = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
    return out


def _declared_end(data: bytes) -> int:
    """The end of an AVI, Matroska or WebM file according to its header; 0 for other formats and unset lengths."""
    if data.startswith(b"RIFF"):
        return 8 + int.from_bytes(data[4:8], "little")
    if not data.startswith(b"\x1aE\xdf\xa3"):
        return 0
    _, segment = _element(data, 4)
    start, end = _element(data, segment + 4)
    unset = (1 << 7 * (start - segment - 4)) - 1
    return 0 if end - start == unset else end


def _element(data: bytes, offset: int) -> tuple[int, int]:
    """Start and end of the content of an EBML element whose length field is at `offset`."""
    width = 9 - data[offset].bit_length()
    size = int.from_bytes(data[offset : offset + width], "big") & ((1 << 7 * width) - 1)
    return offset + width, offset + width + size
