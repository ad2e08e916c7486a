"""Sound by libsndfile, through the soundfile package of the extra `audio`."""

from collections.abc import Callable
from io import SEEK_SET, BytesIO
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._gate import MAX_DECODED_BYTES, absent, check_bytes, translated
from penstock.codecs._sniff import sniff
from penstock.errors import SampleError
from penstock.types import Buffer

Sound: TypeAlias = tuple[NDArray[np.float32], int]

_MP3_FRAME_BYTES: Final = 1441


def decode_audio(data: Buffer) -> Sound:
    """Read float32 (frames, channels), where full scale is 1, and the frames per second.

    Takes what libsndfile takes: wav, flac, ogg (vorbis, opus), mp3, aiff and others. A file that has lost its end is
    refused where its format can tell: not a raw mp3, nor an ogg that was cut between two pages.
    """
    try:
        import soundfile
    except (ImportError, OSError) as cause:  # OSError: the package without its C library
        raise absent("soundfile", "audio") from cause
    with translated(SampleError, f"cannot decode audio, {len(data)} bytes"):
        whole = bytes(data)
        stream = _Stream(whole)
        try:
            with soundfile.SoundFile(stream) as sound:
                return _read(sound, stream, whole)
        except soundfile.LibsndfileError as cause:  # its text would name the stream object
            raise SampleError(cause.error_string) from cause


class _Stream(BytesIO):
    """Bytes before which a broken header cannot lead; an exception inside libsndfile's callbacks would be printed."""

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        return super().seek(max(offset, 0) if whence == SEEK_SET else offset, whence)


def _read(sound: Any, stream: BytesIO, whole: bytes) -> Sound:
    check_bytes(sound.frames * sound.channels * 4, MAX_DECODED_BYTES)
    kind = sniff(whole)
    if (complete := _COMPLETE.get(kind or "")) and not complete(whole):
        raise SampleError("the end of the file is missing")
    samples: NDArray[np.float32] = sound.read(dtype="float32", always_2d=True)
    if len(samples) < sound.frames:
        raise SampleError(f"the header promises {sound.frames} frames, {len(samples)} are there")
    # libsndfile believes the header of an mp3, and without one guesses the length from the first frames. An honest
    # file may leave a frame of padding unread, and tags, which do not begin like a frame.
    rest = memoryview(whole)[stream.tell() :]
    if kind == "mp3" and len(rest) > 2 * _MP3_FRAME_BYTES and sniff(rest) == "mp3":
        raise SampleError("it holds more sound than its header tells of: write it anew with a right header")
    return samples, int(sound.samplerate)


def _wave_complete(data: bytes) -> bool:
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"data":
            if size == 0xFFFFFFFF and data[12:16] == b"ds64":
                size = int.from_bytes(data[28:36], "little")
            # A writer that could not go back leaves the size open.
            return size in (0, 0xFFFFFFFF) or at + 8 + size <= len(data)
        at += 8 + size + size % 2
    return False


def _ogg_complete(data: bytes) -> bool:
    page = memoryview(data)[data.rfind(b"OggS") :]
    return len(page) > 26 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])


_COMPLETE: Final[dict[str, Callable[[bytes], bool]]] = {"wav": _wave_complete, "ogg": _ogg_complete}
