"""Translate errors of codec libraries, report missing extras, and limit decoded sizes."""

from types import TracebackType
from typing import Final

from penstock.errors import InvalidInputError, PenstockError, SampleError

MAX_DECODED_BYTES: Final = 4 << 30
"""Larger decoded audio and video are rejected as decompression bombs."""


class translate_errors:  # noqa: N801  called like a function; a generator would cost as much as parsing a header
    """Translate any exception but `MemoryError`; on invalid bytes, codec libraries raise nearly every type."""

    __slots__ = ("_action", "_error")

    def __init__(self, error: type[PenstockError], action: str) -> None:
        self._error, self._action = error, action

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, MemoryError):
            raise self._error(f"{self._action}: {str(cause) or type(cause).__name__}") from cause


def missing_extra(package: str, extra: str) -> InvalidInputError:
    """The error for an optional dependency that is not installed."""
    return InvalidInputError(f"decoding {extra} needs {package}: pip install 'penstock[{extra}]'")


def check_decoded_bytes(declared: int, limit: int) -> None:
    """Raise `SampleError` for a decoded size above the limit, before memory is allocated."""
    if declared > limit:
        raise SampleError(f"decoding needs {declared} bytes of memory; the limit is {limit}")
