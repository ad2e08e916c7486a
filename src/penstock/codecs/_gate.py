"""Where foreign libraries are met: what they raise becomes ours, and those that are extras may be absent."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import InvalidInputError, PenstockError, SampleError

MAX_DECODED_BYTES: Final = 4 << 30
"""Sound and video that would take more memory than this are refused as decompression bombs."""


@contextmanager
def translated(error: type[PenstockError], action: str) -> Iterator[None]:
    """The gate for everything a codec's library raises; on broken bytes that is nearly any exception."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as cause:
        raise error(f"{action}: {str(cause) or type(cause).__name__}") from cause


def absent(package: str, extra: str) -> InvalidInputError:
    """The error for an extra that is not installed."""
    return InvalidInputError(f"decoding {extra} needs {package}: pip install 'penstock[{extra}]'")


def check_bytes(claimed: int, limit: int) -> None:
    """Refuse media too large to be honest, before memory is taken for them."""
    if claimed > limit:
        raise SampleError(f"it would take {claimed} bytes of memory; the limit is {limit}")
