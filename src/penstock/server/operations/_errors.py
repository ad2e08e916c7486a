"""Penstock's errors as answers of HTTP, with the error codes of the Lance Namespace specification."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from penstock.catalog.registry import DatabaseRefusedError
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    StorageError,
)

Target = Literal["table", "workspace", "other"]
"""What an operation is about."""


class Code(IntEnum):
    """The error codes that this server uses."""

    UNSUPPORTED = 0
    NAMESPACE_NOT_FOUND = 1
    NAMESPACE_ALREADY_EXISTS = 2
    NAMESPACE_NOT_EMPTY = 3
    TABLE_NOT_FOUND = 4
    TABLE_ALREADY_EXISTS = 5
    TABLE_VERSION_NOT_FOUND = 11
    INVALID_INPUT = 13
    CONCURRENT_MODIFICATION = 14
    PERMISSION_DENIED = 15
    UNAUTHENTICATED = 16
    SERVICE_UNAVAILABLE = 17
    INTERNAL = 18
    THROTTLING = 21


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is not a success."""

    status: int
    code: Code
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def unauthenticated(message: str) -> ApiError:
    """A request without a valid key."""
    return ApiError(401, Code.UNAUTHENTICATED, message, {"www-authenticate": 'Bearer realm="penstock"'})


def denied(message: str) -> ApiError:
    """A key without the right."""
    return ApiError(403, Code.PERMISSION_DENIED, message)


def invalid(message: str) -> ApiError:
    """A request that no key could make."""
    return ApiError(400, Code.INVALID_INPUT, message)


def throttled(wait_s: float) -> ApiError:
    """A request too many."""
    seconds = max(1, round(wait_s + 0.5))
    return ApiError(429, Code.THROTTLING, f"too many requests; retry after {seconds} s", {"retry-after": str(seconds)})


_NOT_FOUND = {"table": Code.TABLE_NOT_FOUND, "workspace": Code.NAMESPACE_NOT_FOUND, "other": Code.INVALID_INPUT}
_EXISTS = {
    "table": Code.TABLE_ALREADY_EXISTS,
    "workspace": Code.NAMESPACE_ALREADY_EXISTS,
    "other": Code.CONCURRENT_MODIFICATION,
}
_CONFLICT = {
    "table": Code.CONCURRENT_MODIFICATION,
    "workspace": Code.NAMESPACE_NOT_EMPTY,
    "other": Code.CONCURRENT_MODIFICATION,
}


def translate(error: PenstockError, target: Target) -> ApiError:
    """The answer for an error of the registry, of the vendor or of a table."""
    message = str(error)
    if isinstance(error, NotFoundError):
        return ApiError(404, _NOT_FOUND[target], message)
    if isinstance(error, AlreadyExistsError):
        return ApiError(409, _EXISTS[target], message)
    if isinstance(error, ConflictError):
        return ApiError(409, _CONFLICT[target], message)
    if isinstance(error, InvalidInputError):
        return invalid(message)
    # What the server is made of is not the client's business, so the message is only logged.
    if isinstance(error, AccessDeniedError | DatabaseRefusedError):  # keys of clients are checked before
        misconfigured = (
            "the server is misconfigured: its database or its store refuses it, and a retry will not help; its admin "
            "sees the reason with `penstock serve check`, and in the log of the server by the request id"
        )
        return ApiError(500, Code.INTERNAL, misconfigured)
    if isinstance(error, StorageError):
        unavailable = "the database or the store of the server does not answer; retry, or ask its admin"
        return ApiError(503, Code.SERVICE_UNAVAILABLE, unavailable, {"retry-after": "5"})
    return internal()


@contextmanager
def settings_of_the_server() -> Iterator[None]:
    """Around calls that fail as `InvalidInputError` because of the server's settings, never because of the request."""
    try:
        yield
    except InvalidInputError as error:
        raise AccessDeniedError(f"the settings of the server do not work: {error}") from error


def internal() -> ApiError:
    """A failure of the server."""
    return ApiError(500, Code.INTERNAL, "an internal error; the request id finds it in the log of the server")
