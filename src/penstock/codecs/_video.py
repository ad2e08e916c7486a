"""Video by FFmpeg, through the PyAV package of the extra `video`."""

from io import BytesIO
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._format import MAX_PIXELS, check_pixels
from penstock.codecs._gate import MAX_DECODED_BYTES, absent, check_bytes, translated
from penstock.errors import SampleError
from penstock.types import Buffer

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer

Video: TypeAlias = tuple[NDArray[np.uint8], float]

# FFmpeg also reads playlists, which open whatever files and addresses they name; these only hold streams.
_CONTAINERS: Final = ("avi", "flv", "matroska", "mov", "mpeg", "mpegts", "ogg", "webm")


def decode_video(data: Buffer) -> Video:
    """Read the frames of the main video stream as uint8 RGB (frames, height, width, 3), and the frames per second.

    Every frame counts once, whatever its duration; the rate is the average, 0 where the file does not tell. Rotation
    is not applied. Frames that FFmpeg had to patch up make the sample a bad one, and so does a missing end where the
    container can tell.
    """
    return read_video(data, max_bytes=MAX_DECODED_BYTES)


def read_video(data: Buffer, *, max_bytes: int) -> Video:
    """Decode within a limit."""
    try:
        import av
    except ImportError as cause:
        raise absent("av", "video") from cause
    with translated(SampleError, f"cannot decode video, {len(data)} bytes"):
        whole = bytes(data)
        try:
            with av.open(BytesIO(whole), "r", options={"format_whitelist": ",".join(_CONTAINERS)}) as container:
                stream = container.streams.best("video")
                if not isinstance(stream, av.VideoStream) or stream.codec_context is None:
                    raise SampleError("there is no video in it that FFmpeg can decode")
                frames = _frames(container, stream, max_bytes)
                end = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
                if max(end, _declared_end(whole)) > len(whole):
                    raise SampleError("the end of the file is missing")
                return _pixels(frames), float(stream.average_rate or stream.guessed_rate or 0)
        # MemoryError is among them: broken headers ask for any amount. The text would name the stream object.
        except av.FFmpegError as cause:
            raise SampleError(f"FFmpeg says {cause.strerror!r}") from cause


def _frames(container: "InputContainer", stream: "VideoStream", max_bytes: int) -> list["VideoFrame"]:
    """Decoded frames as FFmpeg holds them, which is half the size of RGB."""
    context = stream.codec_context
    check_pixels(context.height, context.width)
    context.options = {"max_pixels": str(MAX_PIXELS)}  # a stream may also change its size on the way
    context.thread_count = 1  # many samples are decoded at once; threads for each would be in one another's way
    frames: list[VideoFrame] = []
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise SampleError(f"the bytes after frame {len(frames)} are damaged")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise SampleError(f"frame {len(frames)} is damaged")
            frames.append(frame)
            if (frame.height, frame.width) != (frames[0].height, frames[0].width):
                raise SampleError("its frames are not all of one size")
            check_bytes(len(frames) * frame.height * frame.width * 3, max_bytes)
    if not frames:
        raise SampleError("there are no frames in it")
    return frames


def _pixels(frames: list["VideoFrame"]) -> NDArray[np.uint8]:
    from av.video.reformatter import VideoReformatter

    reformatter = VideoReformatter()
    out = np.empty((len(frames), frames[0].height, frames[0].width, 3), np.uint8)
    for place, frame in zip(out, frames, strict=True):
        place[...] = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
    return out


def _declared_end(data: bytes) -> int:
    """Where an AVI, Matroska or WebM file says that it ends; 0 for other files and for lengths left open."""
    if data.startswith(b"RIFF"):
        return 8 + int.from_bytes(data[4:8], "little")
    if not data.startswith(b"\x1aE\xdf\xa3"):
        return 0
    _, segment = _element(data, 4)
    start, end = _element(data, segment + 4)
    left_open = (1 << 7 * (start - segment - 4)) - 1
    return 0 if end - start == left_open else end


def _element(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of an EBML element begins and ends whose length stands at `at`."""
    width = 9 - data[at].bit_length()
    size = int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1)
    return at + width, at + width + size
