"""Translate the errors of obstore and botocore into Penstock's, and detect a process that cannot use obstore."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from penstock.errors import AccessDeniedError, InvalidInputError, PenstockError, StorageError
from penstock.storage import _errors
from penstock.storage._credentials import is_issuer_failure

_STATUS = re.compile(r"status code: (\d{3})")
_QUERY = re.compile(r"\?\S*")
_NO_CONTAINER = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
_BAD_TOKEN = re.compile(
    r"status code: 40[13]\b|ExpiredToken|<Code>(AccessDenied|InvalidAccessKeyId|InvalidToken)"
    r"|request failed for key .*\(code: (AccessDenied|403)\)"  # one key of a bulk delete
)
_NO_TOKEN = re.compile(r"//169\.254\.|//metadata\.google|token request")
_TIMEOUT = "kind: Timeout"
_CONNECTION = "HttpError {"
_UNREACHABLE = re.compile(r"kind: Connect,|client::legacy::Error\(\s*Connect,")  # of a timeout too
_SYSTEM_REASON = re.compile(r'(?:message|error): "([^"]+)"')
_PAST_END = re.compile(r"status code: 416|StartTooLarge|ParseContentRange")  # the last: Azurite on an empty object
_FROM_PROVIDER = re.compile(r"credential provider: (\w+): (.*?)(?:\n\nDebug source|$)", re.DOTALL)
_PROVIDER_ERRORS = {error.__name__: error for error in (AccessDeniedError, InvalidInputError, StorageError)}

_BAD_PROFILE = {"ConfigParseError", "InvalidConfigError", "PartialCredentialsError", "ProfileNotFound"}
_EXPIRED_LOGIN = re.compile(r"SSO|Token|Login")
_NO_CONNECTION = {"ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError", "ReadTimeoutError"}

_runtime_pid: int | None = None


def runtime_is_lost() -> bool:
    """Whether this process was forked after I/O: obstore's threads are missing, and every call would hang."""
    return _runtime_pid not in (None, os.getpid())


def claim_runtime() -> None:
    """Record that this process uses obstore; raises `InvalidInputError` if its runtime was lost in a fork."""
    global _runtime_pid
    if runtime_is_lost():
        raise InvalidInputError(
            "this process was forked from one that had used object storage; such a child can read, but not write nor "
            'continue a listing: start workers with the "spawn" or "forkserver" method, or fork before the first I/O'
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
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _errors.failed(verb, uri, f"obstore panicked: {error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether obstore panicked; that is no `Exception`, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def translated_botocore(profile: str) -> Iterator[None]:
    """Raise Penstock's errors for botocore's, which are known by their names because botocore is optional."""
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        if name in _BAD_PROFILE:
            raise InvalidInputError(
                f"AWS profile {profile!r} cannot be used: {error}; correct the `profile` option, AWS_PROFILE, "
                "~/.aws/config or ~/.aws/credentials"
            ) from error
        if name in _NO_CONNECTION:
            raise StorageError(
                f"the credentials of AWS profile {profile!r} cannot be fetched: {error}; check the network"
            ) from error
        command = "aws sso login" if _EXPIRED_LOGIN.search(name) else "aws sts get-caller-identity"
        reason = "no credentials were found" if isinstance(error, ValueError) else str(error)
        raise AccessDeniedError(
            f"AWS profile {profile!r} has no valid credentials: {reason}; run `{command} --profile {profile}`"
        ) from error


def _translate(error: Exception, verb: str, uri: str, etag: str | None) -> PenstockError:
    text = str(error)
    provider = _FROM_PROVIDER.search(text)
    if provider is not None and provider[1] in _PROVIDER_ERRORS:
        return _PROVIDER_ERRORS[provider[1]](f"cannot {verb} {uri}: {provider[2]}")
    reason = _QUERY.sub("", text.partition("\n\nDebug source")[0])[:600]  # a query may hold a signature
    if _UNREACHABLE.search(text) and (system := _SYSTEM_REASON.search(text)):
        reason = f"{reason}: {system[1]}"
    if _NO_CONTAINER.search(text):
        return StorageError(
            f"cannot {verb} {uri}: the bucket or container does not exist; create it or fix the address"
        )
    if isinstance(error, exceptions.InvalidPathError) and verb == "list":
        return StorageError(
            f"cannot list {uri}: an object in it has a name with an empty part, '.', '..' or a control character"
            f" ({reason!r}); rename or remove it"
        )
    if isinstance(error, FileNotFoundError) and verb in ("read", "describe", "delete"):
        return _errors.not_found(uri)
    if isinstance(error, exceptions.AlreadyExistsError) and "ConditionalRequestConflict" not in text:
        return _errors.already_exists(uri)
    if isinstance(error, exceptions.PreconditionError) and verb == "read":
        return _errors.source_changed(uri, str(etag))
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return _errors.access_denied(verb, uri, reason)
    if _NO_TOKEN.search(text):
        return _errors.access_denied(verb, uri, f"no credentials were found ({reason})")
    if _BAD_TOKEN.search(text):
        return _errors.access_denied(verb, uri, reason)
    if _TIMEOUT in text:
        return _errors.timed_out(verb, uri, reason)
    return _errors.failed(verb, uri, reason)


def is_transient(error: StorageError) -> bool:
    """Whether the same request may succeed later."""
    if error.__cause__ is None or is_issuer_failure(error):
        return True
    text = str(error.__cause__)
    status = _STATUS.search(text)
    if status:
        return int(status[1]) in (408, 409, 429) or (int(status[1]) >= 500 and int(status[1]) != 501)  # not implemented
    return _CONNECTION in text or bool(_FROM_PROVIDER.search(text))


def is_unreachable(error: StorageError) -> bool:
    """Whether no connection to the store could be made."""
    return bool(_UNREACHABLE.search(str(error.__cause__)))


def is_past_end(error: StorageError) -> bool:
    """Whether the store refused a range because the object ends before it."""
    return bool(_PAST_END.search(str(error.__cause__)))
