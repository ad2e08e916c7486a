"""The errors of all stores, with one wording each."""

from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CorruptError,
    NotFoundError,
    SourceChangedError,
    StorageError,
    StorageTimeoutError,
)
from penstock.types import ByteRange


def not_found(uri: str) -> NotFoundError:
    """The store responded that the object does not exist."""
    return NotFoundError(f"no object at {uri}; check the name, or list the folder above it")


def already_exists(uri: str) -> AlreadyExistsError:
    """A create-only write found an existing object."""
    return AlreadyExistsError(f"cannot create {uri}: it exists; read it to see who created it, or choose another name")


def source_changed(uri: str, etag: str) -> SourceChangedError:
    """The object does not have the expected etag."""
    shown = etag if etag.isprintable() else ascii(etag)
    return SourceChangedError(f"{uri} no longer has etag {shown}; restore that object, or link the new one")


def access_denied(verb: str, uri: str, reason: str) -> AccessDeniedError:
    """The store refused the request."""
    return AccessDeniedError(f"cannot {verb} {uri}: {reason}; check the credentials and their permissions")


def timed_out(verb: str, uri: str, reason: str) -> StorageTimeoutError:
    """The store did not respond in time."""
    return StorageTimeoutError(f"cannot {verb} {uri}: {reason}; try again, or allow more time in the RetryPolicy")


def failed(verb: str, uri: str, reason: str) -> StorageError:
    """Any other failure of a request."""
    return StorageError(f"cannot {verb} {uri}: {reason}; check that the store can be reached, then try again")


def check_bounds(uri: str, byte_range: ByteRange, size: int) -> None:
    """Raise `CorruptError` for a range that ends after the object does."""
    if byte_range.end > size:
        raise CorruptError(
            f"{uri} is {size} bytes long, but bytes [{byte_range.start}, {byte_range.end}) were requested; "
            f"it was truncated or replaced: restore it"
        )
