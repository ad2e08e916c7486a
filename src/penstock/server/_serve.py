"""Run a server until it is told to stop."""

import asyncio
import logging.config
import os
import resource
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.supervisors import Multiprocess

from penstock.catalog import write_private
from penstock.catalog.registry import AuditEvent, Registry
from penstock.errors import InvalidInputError, StorageError
from penstock.server._app import create_app
from penstock.server._config import ServerConfig, new_vendor
from penstock.server._logging import LOGGER, log_settings
from penstock.server._metrics import MULTIPROCESS_FOLDER
from penstock.server.operations import DELIMITER

_BACKLOG = 2048
_MAX_CONNECTIONS = 16_384
_OTHER_FILES = 256
"""File descriptors for the database, stores and logs."""
_KEEP_ALIVE_S = 75
_HEADERS_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 30
_WORKER_TIMEOUT_S = 120
"""A worker that does not answer its parent for this long is replaced; a busy machine must not look like that."""
_PARENT_POLL_S = 1.0


@dataclass(frozen=True)
class Started:
    """A server that is about to accept requests."""

    url: str
    narrow: bool
    """Whether clients get credentials of one table only."""
    admin_key_file: Path | None
    """Has a new key of the server's admin: on the first start of the first process, and where one is asked for."""


def serve(
    config: ServerConfig, announce: Callable[[Started], None], *, admin_key_file: Path, new_admin_key: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered, and what is buffered is written.

    `admin_key_file` gets the key of the server's admin when there is a new one: on the first start and, for those who
    have lost it, with `new_admin_key`. Raises
    `InvalidInputError` for a configuration that cannot work, before anything is created; `StorageError` if the database
    does not answer, or refuses every workspace.
    """
    vendor = new_vendor(config)
    _check_certificate(config)
    listener = _bind(config.host, config.port)
    with listener:
        has_new_key = _prepare(config, admin_key_file, new_admin_key=new_admin_key)
        announce(Started(_url(config, listener), vendor.narrow, admin_key_file if has_new_key else None))
        if config.workers == 1:
            with _stop_signals():
                _uvicorn_server(config).run(sockets=[listener])
        else:
            _run_workers(config, listener)


def _prepare(config: ServerConfig, admin_key_file: Path, *, new_admin_key: bool) -> bool:
    """Bring the database to a state that can be served; returns whether there is a new key of the server's admin."""
    registry = Registry(config.database)
    try:
        registry.migrate()
        key = registry.bootstrap()
        if new_admin_key and key is None:
            key = _new_admin_key(registry)
        if key is not None:
            write_private(admin_key_file, f"{key}\n")
        logging.config.dictConfig(log_settings())
        unusable = registry.repair()
        if unusable and len(unusable) == len(registry.workspaces()):
            raise next(iter(unusable.values()))
        for name, error in unusable.items():  # the others can be served
            LOGGER.error("workspace cannot be used", exc_info=error, extra={"fields": {"workspace": name}})
    finally:
        registry.close()
    return key is not None


def _new_admin_key(registry: Registry) -> str:
    """The text of a further key of the server's admin; whoever can start a server has the rights to it."""
    text, info = registry.create_key(None, "admin", note="created by --new-admin-key")
    event = AuditEvent(
        time_us=time.time_ns() // 1000,
        request_id="",
        member=info.member,
        key_id=info.id,
        operation="create_key",
        target=DELIMITER,
        outcome=200,
        detail=info.note,
    )
    registry.audit(event, now=True)
    return text


def _uvicorn_config(config: ServerConfig, app: Callable[[], Starlette]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=True,
        workers=config.workers,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        log_config=log_settings(),
        access_log=False,
        http=_TimedProtocol,
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        limit_concurrency=_max_connections(),
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        timeout_worker_healthcheck=_WORKER_TIMEOUT_S,
    )


def _max_connections() -> int:
    """Connections of a process, beyond which requests are refused: without a file descriptor nobody gets an answer."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(_MAX_CONNECTIONS, files - _OTHER_FILES))


def _uvicorn_server(config: ServerConfig) -> uvicorn.Server:
    return uvicorn.Server(_uvicorn_config(config, partial(create_app, config)))


class _TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # chosen when uvicorn is imported
    """A connection that is closed unless its request begins, and its headers end, within 15 seconds.

    uvicorn itself waits for ever: for the first request, and for the rest of headers once a letter has arrived.
    """

    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a request."""
        super().connection_made(transport)
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the headers are there; start to wait when a later request begins."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._headers_timer is None:
            self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def _restart_timer(self) -> None:
        self._stop_timer()
        self._headers_timer = self.loop.call_later(_HEADERS_TIMEOUT_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None


class _Supervisor(Multiprocess):
    """Starts the workers, replaces those that die, and stops them."""

    def terminate_all(self) -> None:
        """Stop accepting: a connection to a socket that only this process holds would wait for nobody."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _run_workers(config: ServerConfig, listener: socket.socket) -> None:
    folder = tempfile.mkdtemp(prefix="penstock-metrics-")
    os.environ[MULTIPROCESS_FOLDER] = folder  # read by the workers when they import prometheus_client
    try:
        app = partial(_worker_app, config, os.getpid())
        supervisor = _Supervisor(_uvicorn_config(config, app), sockets=[listener])
        supervisor.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if any(process.exitcode == uvicorn.config.STARTUP_FAILURE for process in supervisor.processes):
        raise StorageError("a worker of the server could not start; the log says why")


def _worker_app(config: ServerConfig, parent: int) -> Starlette:
    threading.Thread(target=_stop_without_parent, args=(parent,), name="penstock-parent", daemon=True).start()
    return create_app(config)


def _stop_without_parent(parent: int) -> None:
    """Stop this worker when its parent was killed: nobody else would, and it holds the port."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Make a signal that uvicorn has handled already, and raises again at its end, do nothing more."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Connections inherit it. Without it the body of a response waits 40 ms for the client to confirm the headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(
            f"cannot listen on {host} port {port} ({reason}); choose another --host or --port, or stop what uses it"
        ) from error


def _url(config: ServerConfig, listener: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}"


def _check_certificate(config: ServerConfig) -> None:
    if config.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"{config.tls_cert} and {config.tls_key} cannot be used for TLS ({error}); "
            "give a certificate in PEM form and its key, without a password"
        ) from error


def _no_password() -> str:
    return ""
