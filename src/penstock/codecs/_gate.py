"""Where foreign libraries are met: what they raise becomes ours, and those that are extras may be absent."""

from types import TracebackType
from typing import Final

from penstock.errors import InvalidInputError, PenstockError, SampleError

MAX_DECODED_BYTES: Final = 4 << 30
"""Sound and video that would take more memory than this are refused as decompression bombs."""


class translated:  # noqa: N801  a function to its callers; a generator would cost as much as a header takes to read
    """The gate for everything a codec's library raises; on broken bytes that is nearly any exception."""

    __slots__ = ("_action", "_error")

    def __init__(self, error: type[PenstockError], action: str) -> None:
        self._error, self._action = error, action

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, MemoryError):
            raise self._error(f"{self._action}: {str(cause) or type(cause).__name__}") from cause


def absent(package: str, extra: str) -> InvalidInputError:
    """The error for an extra that is not installed."""
    return InvalidInputError(f"decoding {extra} needs {package}: pip install 'penstock[{extra}]'")


def check_bytes(claimed: int, limit: int) -> None:
    """Refuse media too large to be honest, before memory is taken for them."""
    if claimed > limit:
        raise SampleError(f"it would take {claimed} bytes of memory; the limit is {limit}")
