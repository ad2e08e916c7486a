"""Some frames of a video are those that decoding all of it gives, found by one seek where the container allows it."""

import io
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs import _video_frames, decode_video, decode_video_frames
from penstock.errors import SampleError
from tests.codecs.test_video import LOSSY, encoded, slopes

FRAMES = 40
UNTIMED = ["h264, avi", "h264, mpegts", "mpeg2", "mpeg4, avi"]
"""Containers that lack some times, or do not seek to a keyframe."""
Kind = tuple[str, str, str]
VIDEOS: Mapping[str, tuple[Kind, dict[str, str]]] = {
    "h264, B-frames": (("mp4", "libx264", "yuv420p"), {"g": "12", "bf": "3", "b-pyramid": "normal"}),
    "h264, open GOPs": (("mp4", "libx264", "yuv420p"), {"g": "8", "bf": "3", "x264-params": "open-gop=1:b-adapt=0"}),
    "h264, open GOPs, mkv": (("matroska", "libx264", "yuv420p"), {"g": "8", "bf": "2", "x264-params": "open-gop=1"}),
    "h264, intra": (("mp4", "libx264", "yuv444p"), {"g": "1"}),
    "h264, mpegts": (("mpegts", "libx264", "yuv420p"), {"g": "10", "bf": "2"}),
    "h264, flv": (("flv", "libx264", "yuv420p"), {"g": "10", "bf": "2"}),
    "h264, avi": (("avi", "libx264", "yuv420p"), {"g": "10", "bf": "2"}),
    "hevc": (("mp4", "libx265", "yuv420p"), {"g": "9", "x265-params": "open-gop=1:bframes=3:log-level=none"}),
    "mpeg4": (("mp4", "mpeg4", "yuv420p"), {"g": "7", "bf": "2"}),
    "mpeg4, avi": (("avi", "mpeg4", "yuv420p"), {"g": "7", "bf": "2"}),
    "mpeg2": (("mpeg", "mpeg2video", "yuv420p"), {"g": "7", "bf": "2"}),
    "vp8": (("webm", "libvpx", "yuv420p"), {"g": "16", "deadline": "realtime"}),
    "vp9": (("webm", "libvpx-vp9", "yuv420p"), {"g": "16", "deadline": "realtime", "cpu-used": "8"}),
    "ffv1": (("matroska", "ffv1", "yuv420p"), {}),
    "mjpeg": (("avi", "mjpeg", "yuvj420p"), {}),
}


@cache
def video(name: str, *, variable: bool) -> bytes:
    """Noise that moves, with frames that differ; of a constant or a variable frame rate."""
    (container, codec, pixels), options = VIDEOS[name]
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (48 + FRAMES, 64, 3), np.uint8)
    gaps = random.integers(1, 5, FRAMES) if variable else np.ones(FRAMES, np.int64)
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        track = out.add_stream(codec, rate=Fraction(25), options=options)
        assert isinstance(track, av.VideoStream)
        track.height, track.width, track.pix_fmt = 48, 64, pixels
        track.codec_context.time_base = Fraction(1, 25)
        for number, time in enumerate(np.cumsum(gaps).tolist()):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(noise[number : number + 48]), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 25)
            out.mux(track.encode(frame))
        out.mux(track.encode(None))
    return stream.getvalue()


@cache
def whole(name: str, *, variable: bool) -> Any:
    return decode_video(video(name, variable=variable))[0]


@pytest.mark.parametrize("name", VIDEOS)
@given(frames=st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=5), variable=st.booleans())
@settings(max_examples=25, deadline=None)
def test_frames_are_those_of_the_whole_video(name: str, frames: list[int], variable: bool) -> None:
    variable = variable and VIDEOS[name][0][0] in ("mp4", "matroska", "webm")
    frames = [frame % len(whole(name, variable=variable)) for frame in frames]
    found = decode_video_frames(video(name, variable=variable), frames)
    assert found.dtype == np.uint8
    assert np.array_equal(found, whole(name, variable=variable)[frames])


@pytest.mark.parametrize("name", sorted(VIDEOS.keys() - UNTIMED))
def test_every_frame_is_found_by_one_seek(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, frames = video(name, variable=False), whole(name, variable=False)

    def refuse(*_: Any) -> Any:
        raise AssertionError("decoded from the start")

    monkeypatch.setattr(_video_frames, "_decode_from_start", refuse)
    for number in range(len(frames)):
        assert np.array_equal(decode_video_frames(data, [number])[0], frames[number])


def test_only_frames_from_the_keyframe_on_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    keep = _video_frames._keep

    def counted(found: Any, number: int, *rest: Any) -> None:
        kept.append(number)
        keep(found, number, *rest)

    monkeypatch.setattr(_video_frames, "_keep", counted)
    decode_video_frames(video("h264, B-frames", variable=False), [27, 25])
    assert kept == [24, 25, 26, 27], "keyframes are 12 frames apart"


def test_frames_of_vp8_that_are_not_shown_have_no_number() -> None:
    data = video("vp8", variable=False)
    with av.open(io.BytesIO(data), "r") as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    hidden = bytearray(packets[5])
    hidden[0] &= ~0x10
    changed = data.replace(packets[5], bytes(hidden))
    frames = decode_video(changed)[0]
    assert len(frames) == FRAMES - 1
    for number in (0, 4, 5, 20, FRAMES - 2):
        assert np.array_equal(decode_video_frames(changed, [number])[0], frames[number])


@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_with_another_number_of_frames(name: str) -> None:
    data, count = video(name, variable=False), len(whole(name, variable=False))
    assert len(decode_video_frames(data, [count - 1], num_frames=count)) == 1
    with pytest.raises(SampleError, match=f"cannot decode video.*it has {count} frames, and 43 are needed"):
        decode_video_frames(data, [3, 42])
    for needed in (4, count - 1, count + 1):
        with pytest.raises(SampleError, match=f"it has {count} frames, and {needed} are needed"):
            decode_video_frames(data, [3], num_frames=needed)


@pytest.mark.parametrize("kind", [kind for kind in LOSSY if kind[0] != "mp4"])
def test_truncated(kind: Kind) -> None:
    data = encoded(slopes(6, 32, 32), kind)
    for end in range(0, len(data), 5):
        with pytest.raises(SampleError, match="cannot decode video"):
            decode_video_frames(data[:end], [0, 1])


@pytest.mark.parametrize("kind", LOSSY)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_flipped_bytes_raise_nothing_but_sample_error(kind: Kind, data: st.DataObject) -> None:
    corrupt = bytearray(encoded(slopes(4, 32, 32), kind))
    offsets = st.integers(0, len(corrupt) - 1)
    for offset, value in data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6)):
        corrupt[offset] = value
    try:
        assert decode_video_frames(corrupt, [2, 0]).shape[::3] == (2, 3)
    except SampleError:
        return


def test_large_frames_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(slopes(4, 48, 64), ("matroska", "ffv1", "yuv420p"))
    size = 2 * 48 * 64 * 3
    monkeypatch.setattr(_video_frames, "MAX_DECODED_BYTES", size)
    assert decode_video_frames(data, [3, 1, 3]).nbytes == 3 * size // 2
    with pytest.raises(SampleError, match=f"bytes of memory; the limit is {size}"):
        decode_video_frames(data, [0, 1, 3])
