"""The ASGI application: routes from the table of operations, and what lives as long as the process."""

import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from penstock.catalog.registry import Registry  # first, because it says which package is missing

# isort: split
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.catalog.vending import CachedVendor
from penstock.errors import PenstockError, StorageError
from penstock.server._checks import raise_failures
from penstock.server._config import ServerConfig, new_vendor
from penstock.server._dispatch import Dispatcher
from penstock.server._docs import docs_page
from penstock.server._endpoint import Edge, Endpoint, Load, refuse_route
from penstock.server._metrics import Metrics
from penstock.server._openapi import openapi_document
from penstock.server._purge import Purger
from penstock.server.operations import OPERATIONS, Services

_MAX_THREADS = 32
_HEALTH_CACHE_S = 1.0
_DEEP_CACHE_S = 15.0
_DAY_S = 86_400.0


def create_app(config: ServerConfig) -> Starlette:
    """The application of one process; its database must be migrated already, as `serve` does.

    Raises `InvalidInputError` for a configuration that cannot work. When the application stops, requests in flight are
    answered first, and what the registry has buffered is written.
    """
    metrics = Metrics()
    registry = Registry(
        config.database, retention_s=config.retention_days * _DAY_S, on_audit_dropped=metrics.audit_dropped
    )
    vendor = CachedVendor(new_vendor(config))
    document = openapi_document()
    services = Services(
        registry=registry,
        vendor=vendor,
        check_health=_Cached(registry.check, _HEALTH_CACHE_S, first=None),  # which `serve` has just used
        check_deeply=_Cached(
            partial(raise_failures, registry, vendor),
            _DEEP_CACHE_S,
            first=StorageError("the first checks are still running; ask again"),
        ),
        metrics_text=metrics.text,
        documents={"openapi": document, "docs": docs_page(document)},
    )
    dispatcher = Dispatcher(services, rate_limit=config.rate_limit)
    threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="penstock-request")
    load = Load()
    purger = Purger(registry, vendor, metrics)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        purger.start()
        try:
            yield
        finally:
            purger.stop()
            threads.shutdown()
            registry.close()

    routes = [
        Route(
            operation.path,
            Endpoint(operation, dispatcher, threads, load),
            methods=[operation.method],
            name=operation.name,
        )
        for operation in OPERATIONS
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Edge, metrics=metrics)],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False
    return app


class _Refusal(Response):
    """The answer to a request for which there is no operation."""

    def __init__(self, error: HTTPException) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        allow = ", ".join(sorted((self._error.headers or {}).get("Allow", "").split(", ")))
        await refuse_route(scope, send, status=self._error.status_code, allow=allow)


def _refuse(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _Refusal(error)


class _Cached:
    """A check whose outcome is used again for a while, so that nobody can load the database with it.

    One thread checks; others do not wait for it, and get the outcome before: `first` until there is one.
    """

    def __init__(self, check: Callable[[], object], lifetime_s: float, *, first: PenstockError | None) -> None:
        self._check = check
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()
        self._until = 0.0
        self._error = first

    def __call__(self) -> None:
        if time.monotonic() >= self._until and self._lock.acquire(blocking=False):
            try:
                self._check()
                self._error = None
            except PenstockError as error:
                self._error = error
            finally:
                self._until = time.monotonic() + self._lifetime_s
                self._lock.release()
        if (failure := self._error) is not None:
            raise failure
