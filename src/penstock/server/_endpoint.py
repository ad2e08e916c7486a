"""The edge of the server: reads requests, calls the dispatcher in a thread, and writes responses and logs."""

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server._dispatch import Answer, Call, Dispatcher, error_answer
from penstock.server._logging import LOGGER
from penstock.server._metrics import Metrics
from penstock.server.operations import ApiError, Code, Operation, internal, throttled

_MAX_BODY_BYTES = 64 * 1024
_BODY_TIMEOUT_S = 10.0
_MAX_BODIES = 64
"""Bodies that one key, or one address without a known key, may be sending at once."""
_LINGER_S = 1.0
"""How long the rest of a refused body is discarded: a client that is still sending would not see the answer."""
_MAX_IN_FLIGHT = 1024
"""Requests beyond this many are refused at once, rather than answered late."""
_HEALTH_PATH = "/health"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(r"application/(?:[a-z.-]+\+)?json *(?:;.*)?", re.IGNORECASE)
_UNKNOWN_PATH = "unknown"
_REQUEST_ID_KEY = "penstock.request_id"
_PRINCIPAL_KEY = "penstock.principal"
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_PAGE_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)


class Load:
    """How much a process has to do; used by its event loop alone."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._sending: Counter[str] = Counter()

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """A place among the requests that are answered; raises an `ApiError` if there is none."""
        if self._in_flight >= _MAX_IN_FLIGHT:
            raise ApiError(503, Code.SERVICE_UNAVAILABLE, "too many requests at once; retry", {"retry-after": "1"})
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    @contextmanager
    def sending(self, client: str) -> Iterator[None]:
        """A place among the bodies that a client is sending; raises an `ApiError` if it sends too many."""
        if self._sending[client] >= _MAX_BODIES:
            raise throttled(1.0)
        self._sending[client] += 1
        try:
            yield
        finally:
            self._sending[client] -= 1
            if not self._sending[client]:
                del self._sending[client]


class Endpoint:
    """One operation, as Starlette calls it.

    A request takes a place among those in flight only once it is there as a whole. `/health` has threads of its own
    and needs no place, so that a busy server is not taken for a dead one.
    """

    def __init__(self, operation: Operation, dispatcher: Dispatcher, threads: Executor, load: Load) -> None:
        self.operation = operation
        self._dispatcher = dispatcher
        self._is_health = operation.path == _HEALTH_PATH
        self._threads = None if self._is_health else threads
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        request_id: str = scope[_REQUEST_ID_KEY]
        address, key = scope["client"][0] if scope.get("client") else "", _api_key(headers)
        has_body = self.operation.method == "POST"
        body: bytes | None = b""
        try:
            is_known = self._dispatcher.screen(self.operation, key)
            if has_body:
                with self._load.sending(key if is_known and key else address):
                    body = await _read_body(headers, receive)
        except ApiError as error:
            await _send(error_answer(error, request_id), send, unread=receive if has_body else None)
            return
        if body is None:
            return
        query = scope["query_string"].decode("latin-1")
        call = Call(request_id, address, key, scope["path_params"], query, body)
        try:
            with nullcontext() if self._is_health else self._load.in_flight():
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._threads, self._dispatcher.answer, self.operation, call)
        except ApiError as error:
            answer = error_answer(error, request_id)
        scope[_PRINCIPAL_KEY] = answer.principal
        await _send(answer, send)


class Edge:
    """Around every request: its id, its headers, its line in the log, and its metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope[_REQUEST_ID_KEY] = request_id
        status, started = 0, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *_HEADERS]
            await send(message)

        self._metrics.begin()
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            LOGGER.error("request failed", exc_info=error, extra={"fields": {"request_id": request_id}})
            if not status:
                await _send(error_answer(internal(), request_id), send_with_headers)
        finally:
            self._finish(scope, request_id, status, time.perf_counter() - started)

    def _finish(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        endpoint = scope.get("endpoint")
        path = endpoint.operation.path if isinstance(endpoint, Endpoint) else _UNKNOWN_PATH
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        self._metrics.end(method, path, status, seconds)
        principal = scope.get(_PRINCIPAL_KEY)
        fields = {
            "request_id": request_id,
            "method": method,
            "path": path,
            "status": status,
            "duration_ms": round(seconds * 1000, 3),
            "key_id": principal.key_id if principal else "",
            "workspace": principal.workspace if principal else "",
        }
        LOGGER.info("request", extra={"fields": fields})


async def refuse_route(scope: Scope, send: Send, *, status: int, allow: str) -> None:
    """Answer a request for which there is no operation."""
    if status == 405:
        error = ApiError(405, Code.UNSUPPORTED, f"this path answers {allow} only; see /docs", {"allow": allow})
    else:
        error = ApiError(status, Code.UNSUPPORTED, "this server has no such operation; see /docs")
    await _send(error_answer(error, scope[_REQUEST_ID_KEY]), send)


def _api_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key")


async def _read_body(headers: Headers, receive: Receive) -> bytes | None:
    """The body of a request; None if the client went away. Raises an `ApiError` if it is too large or no JSON."""
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > _MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > _MAX_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError(408, Code.INVALID_INPUT, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s") from None
    if size and not _JSON.fullmatch(headers.get("content-type", "application/json")):
        raise ApiError(415, Code.INVALID_INPUT, "the body must be JSON; send content-type: application/json")
    return b"".join(parts)


def _too_large() -> ApiError:
    return ApiError(413, Code.INVALID_INPUT, f"a request has at most {_MAX_BODY_BYTES} bytes")


async def _send(answer: Answer, send: Send, *, unread: Receive | None = None) -> None:
    """Send an answer; where the body was not read to its end, close the connection, which cannot be used again."""
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *((name.encode(), value.encode()) for name, value in answer.headers.items()),
        *([(b"connection", b"close")] if unread else []),
        *(_PAGE_HEADERS if answer.media_type.startswith("text/html") else ()),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": unread is not None})
    if unread is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (message := await unread())["type"] == "http.request" and message.get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})
