"""The gate to obstore: what it raises becomes ours, and a process that cannot use it is told so."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from penstock.errors import InvalidInputError, PenstockError, StorageError
from penstock.storage import _outcomes

_STATUS = re.compile(r"status code: (\d{3})")
_QUERY = re.compile(r"\?\S*")
_NO_CONTAINER = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
_BAD_TOKEN = re.compile(r"status code: 40[13]\b|ExpiredToken|<Code>(AccessDenied|InvalidAccessKeyId|InvalidToken)")
_NO_TOKEN = re.compile(r"//169\.254\.|//metadata\.google|token request")
_TIMEOUT = "kind: Timeout"
_CONNECTION = "HttpError {"
_PAST_END = re.compile(r"status code: 416|StartTooLarge|ParseContentRange")  # the last: Azurite on an empty object

_runtime_pid: int | None = None


def runtime_is_lost() -> bool:
    """Say whether this process was forked after I/O: obstore's threads did not follow, and it would hang for ever."""
    return _runtime_pid not in (None, os.getpid())


def claim_runtime() -> None:
    """Refuse a process whose runtime is lost, and remember one that has it."""
    global _runtime_pid
    if runtime_is_lost():
        raise InvalidInputError(
            "this process was forked from one that had used object storage; such a copy can read, but not write nor "
            'go on with a listing: start workers with the "spawn" or "forkserver" method, or fork before the first I/O'
        )
    _runtime_pid = os.getpid()


@contextmanager
def translated(verb: str, uri: str, etag: str | None = None) -> Iterator[None]:
    """Raise Penstock's errors for obstore's."""
    try:
        yield
    except (exceptions.BaseError, OSError, ValueError) as error:
        if isinstance(error, PenstockError):
            raise
        raise _translate(error, verb, uri, etag) from error


def _translate(error: Exception, verb: str, uri: str, etag: str | None) -> PenstockError:
    text = str(error)
    reason = _QUERY.sub("", text.partition("\n\nDebug source")[0])[:600]  # a query may hold a signature
    if _NO_CONTAINER.search(text):
        return StorageError(
            f"cannot {verb} {uri}: the bucket or container does not exist; create it or fix the address"
        )
    if isinstance(error, FileNotFoundError) and verb in ("read", "describe", "delete"):
        return _outcomes.not_found(uri)
    if isinstance(error, exceptions.AlreadyExistsError) and "ConditionalRequestConflict" not in text:
        return _outcomes.already_exists(uri)
    if isinstance(error, exceptions.PreconditionError) and verb == "read":
        return _outcomes.source_changed(uri, str(etag))
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return _outcomes.access_denied(verb, uri, reason)
    if _NO_TOKEN.search(text):
        return _outcomes.access_denied(verb, uri, f"no credentials were found ({reason})")
    if _BAD_TOKEN.search(text):
        return _outcomes.access_denied(verb, uri, reason)
    if _TIMEOUT in text:
        return _outcomes.timed_out(verb, uri, reason)
    return _outcomes.failed(verb, uri, reason)


def is_transient(error: StorageError) -> bool:
    """Say whether the same request may succeed later."""
    if error.__cause__ is None:
        return True
    text = str(error.__cause__)
    status = _STATUS.search(text)
    if status:
        return int(status[1]) >= 500 or int(status[1]) in (408, 409, 429)
    return _CONNECTION in text


def is_past_end(error: StorageError) -> bool:
    """Say whether the store refused a range because the object ends before it."""
    return bool(_PAST_END.search(str(error.__cause__)))
