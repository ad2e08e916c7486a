"""Audio round trips; invalid files raise SampleError."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from penstock.codecs import MAX_DECODED_BYTES, decode_audio
from penstock.errors import InvalidInputError, SampleError

LOSSLESS = [("WAV", "PCM_16"), ("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("AIFF", "PCM_16")]
LOSSY = [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]


def encoded(samples: NDArray[Any], rate: int, kind: tuple[str, str], **options: Any) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind[0], subtype=kind[1], **options)
    return stream.getvalue()


def tones(frames: int, channels: int) -> NDArray[np.float32]:
    turns = np.outer(np.arange(frames), np.arange(1, channels + 1)) / 100
    return (0.4 * np.sin(2 * np.pi * turns)).astype(np.float32)


SHORT = np.random.default_rng(0).integers(-32768, 32767, (300, 2), np.int16)


@given(
    samples=hnp.arrays(np.int16, st.tuples(st.integers(1, 200), st.integers(1, 8))),
    rate=st.sampled_from([8000, 22050, 48000]),
    kind=st.sampled_from(LOSSLESS),
)
@settings(deadline=None)
def test_lossless(samples: NDArray[np.int16], rate: int, kind: tuple[str, str]) -> None:
    decoded, decoded_rate = decode_audio(encoded(samples, rate, kind))
    assert (decoded.dtype.name, decoded_rate) == ("float32", rate)
    assert np.array_equal(decoded, samples / np.float32(32768))


def test_float_wav_is_exact_above_full_scale() -> None:
    samples = 3 * tones(50, 1)
    assert np.array_equal(decode_audio(encoded(samples, 16000, ("WAV", "FLOAT")))[0], samples)


@pytest.mark.parametrize("kind", LOSSY)
def test_lossy(kind: tuple[str, str]) -> None:
    samples = tones(24000, 2)
    decoded, rate = decode_audio(encoded(samples, 48000, kind))
    assert (decoded.shape, rate) == (samples.shape, 48000)
    assert np.abs(decoded - samples)[2000:-2000].mean() < 0.02


def test_no_frames() -> None:
    assert decode_audio(encoded(SHORT[:0], 8000, ("WAV", "PCM_16")))[0].shape == (0, 2)


def test_any_buffer() -> None:
    data = encoded(SHORT, 8000, ("FLAC", "PCM_16"))
    expected = decode_audio(data)[0]
    for buffer in (bytearray(data), memoryview(b"x" + data)[1:], memoryview(data).cast("b")):
        assert np.array_equal(decode_audio(buffer)[0], expected)


@pytest.mark.parametrize("kind", [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("RF64", "PCM_16"), ("FLAC", "PCM_16")])
def test_truncated(kind: tuple[str, str]) -> None:
    data = encoded(SHORT, 8000, kind)
    for end in range(len(data)):
        with pytest.raises(SampleError, match="cannot decode audio"):
            decode_audio(data[:end])


@pytest.mark.parametrize("kind", LOSSY)
def test_truncated_inside_a_page_or_after_a_header_with_a_frame_count(kind: tuple[str, str]) -> None:
    data = encoded(tones(4000, 1), 48000, kind)
    last_page = data.rfind(b"OggS") + 4 if kind[0] == "OGG" else len(data) // 2
    for end in range(last_page, len(data), 7):
        with pytest.raises(SampleError):
            decode_audio(data[:end])


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_wav_with_an_unset_length(size: int) -> None:
    data = bytearray(encoded(SHORT, 8000, ("WAV", "PCM_16")))
    at = data.index(b"data") + 4
    data[at : at + 4] = size.to_bytes(4, "little")
    assert len(decode_audio(data)[0]) in (0, len(SHORT))


def test_mp3_with_more_frames_than_its_header_declares() -> None:
    data = encoded(tones(48000, 1), 48000, ("MP3", "MPEG_LAYER_III"))
    assert len(decode_audio(data + b"TAG" + bytes(125))[0]) == 48000
    with pytest.raises(SampleError, match="more audio than its header"):
        decode_audio(data + data)


@pytest.mark.parametrize("kind", [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_flipped_bytes_raise_nothing_but_sample_error(kind: tuple[str, str], data: st.DataObject) -> None:
    corrupt = bytearray(encoded(SHORT, 8000, kind))
    offsets = st.integers(0, 64) | st.integers(0, len(corrupt) - 1)
    for offset, value in data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=6)):
        corrupt[offset] = value
    try:
        samples, rate = decode_audio(corrupt)
    except SampleError:
        return
    assert samples.ndim == 2
    assert rate > 0


@pytest.mark.parametrize("data", [b"", b"\0", b"not a sound at all" * 9])
def test_invalid_bytes(data: bytes) -> None:
    with pytest.raises(SampleError, match=f"cannot decode audio, {len(data)} bytes: Format not recognised"):
        decode_audio(data)


def test_decompression_bombs_are_rejected() -> None:
    data = bytearray(encoded(SHORT, 8000, ("FLAC", "PCM_16")))
    data[21] |= 0x0F  # the sample count: 36 bits, ending with bytes 22 to 25
    data[22:26] = b"\xff" * 4
    with pytest.raises(SampleError, match=f"{((1 << 36) - 1) * 8} bytes of memory; the limit is {MAX_DECODED_BYTES}"):
        decode_audio(data)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InvalidInputError, match=r"soundfile: pip install 'penstock\[audio\]'"):
        decode_audio(b"")


def test_extras_are_imported_lazily() -> None:
    script = "import sys, penstock; print({'soundfile', 'av'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
