"""Read for a process that was forked after obstore had been used, and so cannot use it.

obstore's threads do not survive a fork, and its locks stay as they were: the child would hang. It reads through a
sidecar instead, a newly executed process. The contract; if the code disagrees with this list, the code is wrong:

- A forked process has one sidecar for all its threads and stores, started by its first read. A fork of the fork starts
  its own, and closes its end of the inherited one.
- A request contains the pickled store, which the sidecar opens once and caches; so a restarted sidecar needs no setup.
  Requests run concurrently, and responses arrive in any order. Penstock's errors are raised as themselves.
- The sidecar retries and enforces deadlines; a caller waits `_GRACE_S` longer, then kills the sidecar. When a sidecar
  ends, every waiting caller gets a `StorageError` at once, and the next read starts a new one.
- The sidecar inherits one end of a socket and nothing else, secrets travel over that alone, and it prints nothing.
  Ctrl-C does not reach it. It ends with its process, however that ends; after an orderly exit it is reaped.
"""

import itertools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock.errors import PenstockError, StorageError
from penstock.storage import _errors
from penstock.storage._keys import object_uri
from penstock.storage._store import ObjectInfo, Store

_Verb: TypeAlias = Literal["get", "head", "list"]

_GRACE_S = 10.0  # starting Python on a busy machine included
_THREADS = 128
_MAX_RECEIVE_BYTES = 1 << 30  # macOS refuses more than 2 GiB at once
_REQUEST = struct.Struct("<I")  # bytes of the pickle that follows
_RESPONSE = struct.Struct("<QQI?")  # request id, payload bytes, retries since the last response, whether it is an error
_MAIN = "from penstock.storage._sidecar import serve; serve()"


@dataclass(frozen=True, slots=True)
class _Request:
    id: int
    store: bytes
    verb: _Verb
    key: str
    args: tuple[Any, ...]
    closed_listings: list[int]


@dataclass(frozen=True, slots=True)
class _Response:
    payload: memoryview
    retries: int
    failed: bool


def request_sidecar(store: Store, verb: _Verb, key: str, *args: Any, deadline_s: float) -> Any:
    """Call a method of the store in the sidecar; returns its result or raises its error."""
    return _get_sidecar().request(store, verb, key, args, deadline_s)


def list_by_sidecar(store: Store, prefix: str, *, deadline_s: float) -> Iterator[list[ObjectInfo]]:
    """Yield the pages of a listing, whose iterator lives in the sidecar."""
    sidecar = _get_sidecar()
    listing = next(sidecar.ids)
    try:
        while (page := sidecar.request(store, "list", prefix, (listing,), deadline_s)) is not None:
            yield page
    finally:
        sidecar.closed_listings.append(listing)  # sent later: the garbage collector may run this in any thread


class _Sidecar:
    """The client: callers send and wait; one thread receives, and cleans up when the sidecar ends."""

    def __init__(self) -> None:
        self.ended = False
        self.ids = itertools.count()
        self.closed_listings: deque[int] = deque()
        self._in_flight: dict[int, Future[_Response]] = {}
        self._send_lock = threading.Lock()
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN],
                stdin=child_socket.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                process_group=0,
            )
        self._finalizer = Finalize(None, self._close, exitpriority=0)  # a child of multiprocessing runs no atexit
        self._receiver = threading.Thread(target=self._receive, name="penstock-sidecar", daemon=True)
        self._receiver.start()

    def request(self, store: Store, verb: _Verb, key: str, args: tuple[Any, ...], deadline_s: float) -> Any:
        """Send a request and wait; returns the result, or raises the error, of its response."""
        request_id, future = next(self.ids), Future[_Response]()
        try:
            with self._send_lock:
                if self.ended:
                    raise EOFError
                self._in_flight[request_id] = future
                closed = [self.closed_listings.popleft() for _ in range(len(self.closed_listings))]
                self._send(pickle.dumps(_Request(request_id, pickle.dumps(store), verb, key, args, closed)))
            response = future.result(deadline_s + _GRACE_S)
        except TimeoutError as error:
            self._end()
            reason = "the sidecar process of this forked process does not respond"
            raise _errors.timed_out(verb, object_uri(store.uri, key), reason) from error
        except (EOFError, OSError) as error:
            reason = f"the sidecar process of this forked process has ended (status {self._process.poll()})"
            raise _errors.failed(verb, object_uri(store.uri, key), reason) from error
        finally:
            self._in_flight.pop(request_id, None)
        store.retries += response.retries
        if response.failed:
            raise pickle.loads(response.payload)
        return response.payload.toreadonly() if verb == "get" else pickle.loads(response.payload)

    def abandon(self) -> None:
        """Detach in a forked child: the sidecar is not its child process, and lives while the socket is open."""
        self.ended = True
        self._send_lock = threading.Lock()
        self._socket.close()
        self._process.returncode = 0

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(_REQUEST.pack(len(data)) + data)
        except BaseException:  # such as Ctrl-C, with the request partly sent
            self._end()
            raise

    def _receive(self) -> None:
        try:
            while True:
                self._receive_response()
        except (EOFError, OSError):
            pass
        finally:
            self._end()
            self._process.wait()
            self._finalizer.cancel()
            with self._send_lock:  # no request is being sent; all are registered
                self._socket.close()
            for request_id in list(self._in_flight):
                if future := self._in_flight.pop(request_id, None):
                    future.set_exception(EOFError())

    def _receive_response(self) -> None:
        request_id, size, retries, failed = _RESPONSE.unpack(_receive_exactly(self._socket, _RESPONSE.size))
        payload = _receive_exactly(self._socket, size)
        if future := self._in_flight.pop(request_id, None):
            future.set_result(_Response(payload, retries, failed))

    def _end(self) -> None:
        self.ended = True
        self._process.kill()

    def _close(self) -> None:
        self._end()
        self._receiver.join(timeout=5)


_start_lock = threading.Lock()
_sidecar: _Sidecar | None = None


def _get_sidecar() -> _Sidecar:
    global _sidecar
    with _start_lock:
        if _sidecar is None or _sidecar.ended:
            try:
                _sidecar = _Sidecar()
            except OSError as error:
                raise StorageError(
                    f"cannot start the sidecar process of this forked process: {error}; free resources, "
                    f'or start workers with the "spawn" or "forkserver" method'
                ) from error
        return _sidecar


def _reset_after_fork() -> None:
    global _sidecar
    if _sidecar is not None:
        _sidecar.abandon()
        _sidecar = None
    _start_lock.release()


# No fork while a sidecar starts: the child would hold both ends of its socket, and neither would see the other close.
os.register_at_fork(before=_start_lock.acquire, after_in_parent=_start_lock.release, after_in_child=_reset_after_fork)


def _receive_exactly(source: socket.socket, size: int) -> memoryview:
    view = np.empty(size, np.uint8).data
    done = 0
    while done < size:
        count = source.recv_into(view[done : done + _MAX_RECEIVE_BYTES], 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        done += count
    return view


def serve() -> None:
    """Run the sidecar: serve requests from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = socket.socket(fileno=0)
    server = _Server(source)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        while True:
            (size,) = _REQUEST.unpack(_receive_exactly(source, _REQUEST.size))
            pool.submit(server.respond, pickle.loads(_receive_exactly(source, size)))
    finally:
        os._exit(0)  # requests in flight have no receiver


class _Server:
    """The server: open stores and listings; sends one response at a time."""

    def __init__(self, target: socket.socket) -> None:
        self._target = target
        self._stores: dict[bytes, Any] = {}
        self._listings: dict[int, Iterator[list[ObjectInfo]]] = {}
        self._open_lock, self._send_lock = threading.Lock(), threading.Lock()

    def respond(self, request: _Request) -> None:
        """Execute a request and send its result or error."""
        try:
            value, failed = self._read(request), False
        except PenstockError as error:
            value, failed = error, True
        except BaseException as error:  # a panic of obstore is not an Exception, and the caller waits
            value, failed = StorageError(f"cannot {request.verb} {request.key}: {error!r}; report this"), True
        payload = value if isinstance(value, memoryview) else pickle.dumps(value)
        store = self._stores.get(request.store)
        with self._send_lock:
            retries = 0
            if store is not None:
                retries, store.retries = store.retries, 0
            self._target.sendall(_RESPONSE.pack(request.id, len(payload), retries, failed))
            self._target.sendall(payload)

    def _read(self, request: _Request) -> Any:
        for listing in request.closed_listings:
            self._listings.pop(listing, None)
        with self._open_lock:
            if request.store not in self._stores:
                self._stores[request.store] = pickle.loads(request.store)
            store = self._stores[request.store]
        if request.verb == "head":
            return store.head(request.key)
        if request.verb == "get":
            byte_range, etag = request.args
            return store.get(request.key, byte_range=byte_range, etag=etag)
        [listing] = request.args
        pages = self._listings.pop(listing, None) or store.list_pages(request.key)
        page = next(pages, None)
        if page is not None:
            self._listings[listing] = pages
        return page
