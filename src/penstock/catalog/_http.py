"""Requests to the server of a catalog: retries, and the one gate through which its errors pass."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from penstock.catalog._settings import GET_A_KEY, ServerSettings, is_loopback
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    StorageError,
)

_TIMEOUT_S = 10.0
_AWAY_S = 5.0
"""How long a server that is away is tried again; one that restarts is back by then."""
_THROTTLED_S = 60.0
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 1.0
_MAX_BYTES = 64 << 20
_AWAY = (502, 503, 504)
_CHECK = "check the URL, that `penstock serve` runs there, and that no proxy or firewall is in the way"

_jitter = random.Random()  # its own generator: a user's seeded one is not disturbed


@dataclass(frozen=True)
class Answer:
    """The document that the server answered with."""

    document: Mapping[str, Any]
    date_s: float
    """The server's clock, in seconds since 1970; at most a second fast."""


@dataclass(frozen=True)
class _Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The answer as JSON; None if it is anything else, such as the page of a proxy."""
        try:
            found = json.loads(self.body) if self.body else {}
        except (RecursionError, ValueError):
            return None
        return found if isinstance(found, dict) else None


@contextmanager
def understood(url: str, what: str) -> Iterator[None]:
    """Turn the errors of reading a document whose fields are not the expected ones into a `StorageError`."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StorageError(
            f"cannot {what}: the server {url} gave an answer that this version does not understand; use the version of"
            " Penstock that the server has"
        ) from error


class _UnreachableError(Exception):
    """No response; `sent` says whether the server may have executed the request."""

    def __init__(self, reason: str, *, sent: bool, final: bool = False) -> None:
        super().__init__(reason)
        self.sent, self.final = sent, final


class ServerApi:
    """Calls operations of a server. It has no open connection, so that threads, forks and pickles are no concern."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._sleep, self._clock = sleep, clock

    def __repr__(self) -> str:
        return f"ServerApi({self.settings.url!r})"

    def get(self, path: str, what: str, **query: str | None) -> Answer:
        """Call an operation that changes nothing; `what` describes it in messages, such as "list the tables"."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return self._call("GET", f"{path}?{given}" if given else path, None, what, repeatable=True)

    def post(self, path: str, what: str, body: Mapping[str, Any], *, repeatable: bool = False) -> Answer:
        """Call an operation; `repeatable` if it may be executed twice, because only then a lost answer is retried."""
        return self._call("POST", path, json.dumps(body).encode(), what, repeatable=repeatable)

    def _call(self, method: str, path: str, body: bytes | None, what: str, *, repeatable: bool) -> Answer:
        started_s, attempt = self._clock(), 0
        while True:
            outcome = _attempt(self.settings, method, path, body)
            pause_s = _pause_s(outcome, attempt, repeatable=repeatable)
            if pause_s is None or self._clock() + pause_s - started_s > _patience_s(outcome):
                break
            self._sleep(pause_s)
            attempt += 1
        if isinstance(outcome, _UnreachableError):
            raise self._away(what, str(outcome)) from outcome
        return self._accept(outcome, what)

    def _accept(self, response: _Response, what: str) -> Answer:
        document = response.document
        if response.status == 200 and document is not None:
            return Answer(document, _date_s(response.headers))
        request = response.headers.get("x-request-id", "")
        if document is None or "error" not in document:
            if response.status in _AWAY:
                raise self._away(what, f"HTTP status {response.status}")
            raise StorageError(
                f"cannot {what}: what answers at {self.settings.url} (from {self.settings.url_source}) is not a"
                f" Penstock server (HTTP status {response.status}, {response.headers.get('content-type', 'no type')})"
                "; a proxy or a login page may be in the way, or the URL names another server"
            )
        detail = str(document["error"]).rstrip(".")
        raise self._error(response.status, document.get("code"), what, detail, request)

    def _error(self, status: int, code: object, what: str, detail: str, request: str) -> PenstockError:
        settings = self.settings
        text = f"cannot {what}: {detail}" + (f" (request {request})" if request else "")
        if status == 401:
            return AccessDeniedError(f"{text}; the key is from {settings.key_source}. For a new one: {GET_A_KEY}")
        if status == 403:
            named = f", and the workspace {settings.workspace!r} from PENSTOCK_WORKSPACE" if settings.workspace else ""
            return AccessDeniedError(f"{text}; the key is from {settings.key_source}{named}")
        if status == 404:
            return NotFoundError(text)
        if status == 409:
            return AlreadyExistsError(text) if code in (2, 5) else ConflictError(text)
        if status in (400, 413, 422):
            return InvalidInputError(text)
        if status == 429:
            return StorageError(f"{text}; too many requests for {_THROTTLED_S:g} s: wait, or have the limit raised")
        again = "retry, and " if status in _AWAY else ""
        return StorageError(f"{text}; {again}give the request id to the admin of {settings.url}")

    def _away(self, what: str, reason: str) -> StorageError:
        return StorageError(
            f"cannot {what}: the server {self.settings.url} (from {self.settings.url_source}) does not answer"
            f" ({reason}); {_CHECK}"
        )


def _pause_s(outcome: _Response | _UnreachableError, attempt: int, *, repeatable: bool) -> float | None:
    """The seconds until another attempt; None if the outcome is final."""
    backoff_s = min(_FIRST_PAUSE_S * 2.0**attempt, _MAX_PAUSE_S) * _jitter.uniform(0.5, 1.0)
    if isinstance(outcome, _UnreachableError):
        return None if outcome.final or (outcome.sent and not repeatable) else backoff_s
    if outcome.status == 429 or (repeatable and outcome.status in _AWAY):
        try:
            return max(backoff_s, float(outcome.headers.get("retry-after", "0")))
        except ValueError:  # a date, which proxies may send
            return backoff_s
    return None


def _patience_s(outcome: _Response | _UnreachableError) -> float:
    return _THROTTLED_S if isinstance(outcome, _Response) and outcome.status == 429 else _AWAY_S


def _attempt(settings: ServerSettings, method: str, path: str, body: bytes | None) -> _Response | _UnreachableError:
    try:
        return _request(settings, method, path, body)
    except _UnreachableError as error:
        return error


def _date_s(headers: Mapping[str, str]) -> float:
    """The server's time. The header has whole seconds: the next one, so that no lifetime is overestimated."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(headers["date"]).timestamp() + 1
    except (KeyError, ValueError):
        return time.time()


def _request(settings: ServerSettings, method: str, path: str, body: bytes | None) -> _Response:
    """One request on a connection of its own, through the proxy of the system; redirects are not followed."""
    import http.client
    import urllib.request as requests

    opener = requests.OpenerDirector()
    proxies = requests.ProxyHandler({} if is_loopback(settings.url) else None)
    for handler in (proxies, requests.HTTPHandler(), requests.HTTPSHandler()):
        opener.add_handler(handler)
    headers = {"Accept": "application/json", "User-Agent": "penstock", "Connection": "close"}
    request = requests.Request(settings.url + path, body, headers, method=method)
    request.add_unredirected_header("Authorization", f"Bearer {settings.key}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            found = response.read(_MAX_BYTES + 1)
            if len(found) > _MAX_BYTES:
                raise _UnreachableError("an answer of more than 64 MiB", sent=True, final=True)
            return _Response(response.status, {k.lower(): v for k, v in response.headers.items()}, found)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> _UnreachableError:
    import socket
    import ssl

    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"its certificate cannot be verified: {cause.verify_message}; SSL_CERT_FILE names further authorities"
        return _UnreachableError(reason, sent=False, final=True)
    if isinstance(cause, socket.gaierror):
        return _UnreachableError("no address is known for this host", sent=False)
    if isinstance(cause, TimeoutError):
        return _UnreachableError(f"no answer within {_TIMEOUT_S:g} s", sent=True)
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return _UnreachableError(reason, sent=not isinstance(cause, ConnectionRefusedError))
