"""Decode some frames of a video: seek once, and decode forward to the last of them."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._errors import MAX_DECODED_BYTES, check_decoded_bytes
from penstock.codecs._video import decoded_frames, open_video_stream, rgb_pixels
from penstock.errors import SampleError
from penstock.types import Buffer

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer
    from av.packet import Packet

    FoundFrames: TypeAlias = dict[int, VideoFrame]


class _Timeline(NamedTuple):
    """Presentation times of a stream, in increasing order."""

    frames: list[int]
    keyframes: list[int]
    packets: int
    """Packets that have a frame; there are fewer times if some lack a time of their own."""


def decode_video_frames(data: Buffer, frames: Sequence[int], *, num_frames: int | None = None) -> NDArray[np.uint8]:
    """Return some frames, by their numbers in presentation order, as uint8 RGB (len(frames), height, width, 3).

    Opens the video once and seeks once. Decodes from its start instead if the container does not time every frame, or
    does not seek to a keyframe. Raises the errors of `decode_video` for what it decodes, and `SampleError` for a video
    that lacks a frame, or has another number of frames than `num_frames`.
    """
    wanted = sorted(set(frames))
    with open_video_stream(data) as (container, stream):
        timeline = _read_timeline(container, stream)
        found = _seek(container, stream, timeline, wanted, num_frames)
    if found is None:
        found = _decode_from_start(data, wanted, num_frames, timeline.packets)
    return rgb_pixels([found[number] for number in wanted])[np.searchsorted(wanted, frames)]


def _read_timeline(container: "InputContainer", stream: "VideoStream") -> _Timeline:
    """The times of all packets, which are not decoded."""
    codec = stream.codec_context.name
    times: list[int | None] = []
    keyframes: list[int] = []
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise SampleError(f"the bytes after packet {len(times)} are damaged")
        if packet.size and not packet.is_discard and _is_shown(packet, codec):
            times.append(packet.pts)
            if packet.is_keyframe and packet.pts is not None:
                keyframes.append(packet.pts)
    return _Timeline(sorted({time for time in times if time is not None}), sorted(keyframes), len(times))


def _seek(
    container: "InputContainer",
    stream: "VideoStream",
    timeline: _Timeline,
    wanted: Sequence[int],
    num_frames: int | None,
) -> "FoundFrames | None":
    """The wanted frames; None if a seek does not give all of them with certainty."""
    count = len(timeline.frames)
    if count != timeline.packets or count <= wanted[-1] or num_frames not in (None, count):
        return None
    before = bisect_right(timeline.keyframes, timeline.frames[wanted[0]])
    return _decode_forward(container, stream, timeline.keyframes[before - 1], timeline, wanted) if before else None


def _is_shown(packet: "Packet[VideoStream]", codec: str) -> bool:
    """Whether a packet has a frame; those of VP8 may only have a reference for other frames (RFC 6386, 9.1)."""
    return "vp8" not in codec or bool(memoryview(packet)[0] & 0x10)


def _decode_forward(
    container: "InputContainer", stream: "VideoStream", start: int, timeline: _Timeline, wanted: Sequence[int]
) -> "FoundFrames | None":
    """The wanted frames, decoded from the keyframe at time `start`; None if its frames are not those of the timeline.

    Frames before the keyframe may follow it in the file, and cannot be decoded from there.
    """
    container.seek(start, stream=stream)
    number = timeline.frames.index(start)
    found: FoundFrames = {}
    for packet in container.demux(stream):
        for frame in packet.decode():
            if frame.pts is not None and frame.pts < start:
                continue
            if number == len(timeline.frames) or frame.pts != timeline.frames[number] or frame.is_corrupt:
                return None
            _keep(found, number, frame, wanted)
            number += 1
            if number > wanted[-1]:
                return found
    return None


def _decode_from_start(data: Buffer, wanted: Sequence[int], num_frames: int | None, packets: int) -> "FoundFrames":
    """The wanted frames; counts those that are decoded, up to the first one too many."""
    needed = wanted[-1] + 1 if num_frames is None else num_frames
    with open_video_stream(data) as (container, stream):
        found: FoundFrames = {}
        count = 0
        for number, frame in enumerate(decoded_frames(container, stream)):
            count = number + 1
            if count > needed:
                count = max(count, packets)
                break
            _keep(found, number, frame, wanted)
            if count == needed and num_frames is None:
                break
        if count != needed:
            raise SampleError(f"it has {count} frames, and {needed} are needed")
        return found


def _keep(found: "FoundFrames", number: int, frame: "VideoFrame", wanted: Collection[int]) -> None:
    if number in wanted:
        found[number] = frame
        check_decoded_bytes(len(found) * frame.height * frame.width * 3, MAX_DECODED_BYTES)
        first = next(iter(found.values()))
        if (frame.height, frame.width) != (first.height, first.width):
            raise SampleError("its frames are not all of one size")
