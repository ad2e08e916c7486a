"""Decode audio with libsndfile, through the soundfile package of the `audio` extra."""

from collections.abc import Callable
from io import SEEK_SET, BytesIO
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._errors import MAX_DECODED_BYTES, check_decoded_bytes, missing_extra, translate_errors
from penstock.codecs._sniff import sniff
from penstock.errors import SampleError
from penstock.types import Buffer

AudioSamples: TypeAlias = tuple[NDArray[np.float32], int]

_MP3_FRAME_BYTES: Final = 1441


def decode_audio(data: Buffer) -> AudioSamples:
    """Return float32 samples of shape (frames, channels), full scale 1, and the sample rate.

    Accepts every format of libsndfile: wav, flac, ogg (vorbis, opus), mp3, aiff and others. Raises `SampleError` for
    invalid and truncated bytes; truncation of a raw mp3, or of an ogg between two pages, goes undetected. Raises
    `InvalidInputError` without the `audio` extra.
    """
    try:
        import soundfile
    except (ImportError, OSError) as cause:  # OSError: the C library is missing
        raise missing_extra("soundfile", "audio") from cause
    with translate_errors(SampleError, f"cannot decode audio, {len(data)} bytes"):
        whole = bytes(data)
        stream = _Stream(whole)
        try:
            with soundfile.SoundFile(stream) as sound:
                return _read(sound, stream, whole)
        except soundfile.LibsndfileError as cause:  # its str() includes the stream object
            raise SampleError(cause.error_string) from cause


class _Stream(BytesIO):
    """Clamps negative offsets from invalid headers: cffi prints an exception raised in libsndfile's callbacks."""

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        return super().seek(max(offset, 0) if whence == SEEK_SET else offset, whence)


def _read(sound: Any, stream: BytesIO, whole: bytes) -> AudioSamples:
    check_decoded_bytes(sound.frames * sound.channels * 4, MAX_DECODED_BYTES)
    name = sniff(whole)
    if (complete := _COMPLETE.get(name or "")) and not complete(whole):
        raise SampleError("the end of the file is missing")
    samples: NDArray[np.float32] = sound.read(dtype="float32", always_2d=True)
    if len(samples) < sound.frames:
        raise SampleError(f"the header declares {sound.frames} frames, found {len(samples)}")
    # libsndfile trusts the frame count in an mp3 header, or estimates it from the first frames. Up to one frame of
    # padding, and tags, which do not start with a frame header, may remain unread in a valid file.
    rest = memoryview(whole)[stream.tell() :]
    if name == "mp3" and len(rest) > 2 * _MP3_FRAME_BYTES and sniff(rest) == "mp3":
        raise SampleError("the file holds more audio than its header declares; rewrite the file with a correct header")
    return samples, int(sound.samplerate)


def _wave_complete(data: bytes) -> bool:
    offset = 12
    while offset + 8 <= len(data):
        size = int.from_bytes(data[offset + 4 : offset + 8], "little")
        if data[offset : offset + 4] == b"data":
            if size == 0xFFFFFFFF and data[12:16] == b"ds64":
                size = int.from_bytes(data[28:36], "little")
            # Writers that cannot seek leave the size unset.
            return size in (0, 0xFFFFFFFF) or offset + 8 + size <= len(data)
        offset += 8 + size + size % 2
    return False


def _ogg_complete(data: bytes) -> bool:
    page = memoryview(data)[data.rfind(b"OggS") :]
    return len(page) > 26 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])


_COMPLETE: Final[dict[str, Callable[[bytes], bool]]] = {"wav": _wave_complete, "ogg": _ogg_complete}
