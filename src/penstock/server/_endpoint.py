"""The edge of the server: reads requests, calls the dispatcher in a thread, and writes responses and logs."""

import asyncio
import re
import secrets
import time
from concurrent.futures import Executor

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server._dispatch import Answer, Call, Dispatcher, error_answer
from penstock.server._logging import LOGGER
from penstock.server._metrics import Metrics
from penstock.server.operations import ApiError, Code, Operation, internal

_MAX_BODY_BYTES = 64 * 1024
_BODY_TIMEOUT_S = 30.0
_MAX_IN_FLIGHT = 1024
"""Requests beyond this many are refused at once, rather than answered late."""
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


class Endpoint:
    """One operation, as Starlette calls it."""

    def __init__(self, operation: Operation, dispatcher: Dispatcher, threads: Executor) -> None:
        self.operation = operation
        self._dispatcher = dispatcher
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        request_id: str = scope[_REQUEST_ID_KEY]
        try:
            body = await _read_body(headers, receive) if self.operation.method == "POST" else b""
        except ApiError as error:
            # What is left of the body is not read, so the connection cannot be used again.
            answer = error_answer(error, request_id)
            await _send(answer, send, close=True)
            return
        if body is None:
            return
        call = Call(
            request_id=request_id,
            address=scope["client"][0] if scope.get("client") else "",
            key=_api_key(headers),
            path_parts=scope["path_params"],
            query=scope["query_string"].decode("latin-1"),
            body=body,
        )
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._dispatcher.answer, self.operation, call)
        scope[_PRINCIPAL_KEY] = answer.principal
        await _send(answer, send)


class Edge:
    """Around every request: its id, its headers, its line in the log, its metrics, and a limit of their number."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._in_flight = 0

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

        self._in_flight += 1
        self._metrics.begin()
        try:
            if self._in_flight > _MAX_IN_FLIGHT:
                busy = ApiError(503, Code.SERVICE_UNAVAILABLE, "too many requests at once; retry", {"retry-after": "1"})
                await _send(error_answer(busy, request_id), send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except Exception as error:
            LOGGER.error("request failed", exc_info=error, extra={"fields": {"request_id": request_id}})
            if not status:
                await _send(error_answer(internal(), request_id), send_with_headers)
        finally:
            self._in_flight -= 1
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


async def _send(answer: Answer, send: Send, *, close: bool = False) -> None:
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *((name.encode(), value.encode()) for name, value in answer.headers.items()),
        *([(b"connection", b"close")] if close else []),
        *(_PAGE_HEADERS if answer.media_type.startswith("text/html") else ()),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
