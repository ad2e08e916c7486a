"""The errors that every store must word and choose alike."""

from penstock.errors import (
    AccessDenied,
    AlreadyExistsError,
    CorruptError,
    NotFoundError,
    SourceChanged,
    StorageError,
    StorageTimeout,
)
from penstock.types import ByteRange


def not_found(uri: str) -> NotFoundError:
    """The store answered, and there is no such object."""
    return NotFoundError(f"no object at {uri}; check the name, or list the folder above it")


def already_exists(uri: str) -> AlreadyExistsError:
    """A create-only write met an object."""
    return AlreadyExistsError(f"cannot create {uri}: it exists; read it to see whose it is, or choose another name")


def source_changed(uri: str, etag: str) -> SourceChanged:
    """The object is not the one whose etag the caller knows."""
    return SourceChanged(f"{uri} no longer has etag {etag}; restore that object, or link the new one")


def access_denied(verb: str, uri: str, reason: str) -> AccessDenied:
    """The store refused the caller."""
    return AccessDenied(f"cannot {verb} {uri}: {reason}; check the credentials and what they are allowed to do")


def timed_out(verb: str, uri: str, reason: str) -> StorageTimeout:
    """The store was too slow."""
    return StorageTimeout(f"cannot {verb} {uri}: {reason}; try again, or allow more time in the RetryPolicy")


def failed(verb: str, uri: str, reason: str) -> StorageError:
    """Anything else that went wrong between us and the store."""
    return StorageError(f"cannot {verb} {uri}: {reason}; check that the store can be reached, then try again")


def check_bounds(uri: str, byte_range: ByteRange, size: int) -> None:
    """Refuse a range that ends after the object does."""
    if byte_range.end > size:
        raise CorruptError(
            f"{uri} is {size} bytes long, but bytes [{byte_range.start}, {byte_range.end}) were asked for; "
            f"it was cut short or replaced: restore it"
        )
