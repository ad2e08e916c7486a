"""Read for a process that was forked after obstore had been used, and so cannot use it.

obstore's threads do not follow a fork, and their locks stay as they were: the copy would hang for ever. It reads by a
sidecar instead, a process executed afresh. The contract; if the code disagrees with this list, the code is wrong:

- A forked process has one sidecar for all its threads and stores, started by its first read. A copy of the copy starts
  its own, and lets go of the one that it inherited.
- A request holds the pickle of its store, which the sidecar opens once; so one started anew needs no introduction.
  Requests run side by side and are answered in any order. Penstock's errors come back as themselves.
- Retries and deadlines are the sidecar's business; a call waits `_GRACE_S` longer. One that waits in vain ends the
  sidecar. Whenever that ends, whoever waits gets a `StorageError` at once, and the next read starts another.
- The sidecar inherits one end of a socket and nothing else, secrets travel over that alone, and it prints nothing.
  Ctrl-C does not reach it. It ends when its process does, however that comes about; after an orderly end it is reaped.
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
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock.errors import PenstockError, StorageError
from penstock.storage import _outcomes
from penstock.storage._inputs import object_uri
from penstock.storage._store import ObjectInfo, Store

_Verb: TypeAlias = Literal["get", "head", "list"]

_GRACE_S = 10.0  # starting Python on a busy machine included
_THREADS = 128
_MAX_RECEIVE_BYTES = 1 << 30  # macOS refuses more than 2 GiB at once
_REQUEST = struct.Struct("<I")  # bytes of the pickle that follows
_ANSWER = struct.Struct("<QQI?")  # request, bytes that follow, retries since the last answer, whether they are an error
_PACKAGE = str(Path(__file__).parents[1])
# The package's front door would bring Arrow and the codecs: three times the start and twice the memory.
_MAIN = """
import sys, types
sys.modules["penstock"] = types.ModuleType("penstock")
sys.modules["penstock"].__path__ = sys.argv[1:]
from penstock.storage._sidecar import serve
serve()
"""


@dataclass(frozen=True, slots=True)
class _Request:
    number: int
    store: bytes
    verb: _Verb
    key: str
    args: tuple[Any, ...]
    dropped: list[int]
    """Listings that nobody will ask to go on."""


@dataclass(frozen=True, slots=True)
class _Answer:
    payload: memoryview
    retries: int
    failed: bool


def ask_sidecar(store: Store, verb: _Verb, key: str, *args: Any, deadline_s: float) -> Any:
    """Return what a verb of the store returns where it can be used."""
    return _sidecar_of_this_process().ask(store, verb, key, args, deadline_s)


def list_by_sidecar(store: Store, prefix: str, *, deadline_s: float) -> Iterator[list[ObjectInfo]]:
    """Walk the pages of a listing; the sidecar keeps the place."""
    sidecar = _sidecar_of_this_process()
    listing = next(sidecar.numbers)
    try:
        while (page := sidecar.ask(store, "list", prefix, (listing,), deadline_s)) is not None:
            yield page
    finally:
        sidecar.dropped.append(listing)  # sends nothing: the garbage collector may run this anywhere


class _Sidecar:
    """The forked process's end: threads send and wait; one thread receives, and cleans up when nothing more comes."""

    def __init__(self) -> None:
        self.ended = False
        self.numbers = itertools.count()
        self.dropped: deque[int] = deque()
        self._waiting: dict[int, Future[_Answer]] = {}
        self._sending = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, _PACKAGE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                process_group=0,
            )
        self._finalizer = Finalize(None, self._close, exitpriority=0)  # a child of multiprocessing runs no atexit
        self._receiver = threading.Thread(target=self._receive, name="penstock-sidecar", daemon=True)
        self._receiver.start()

    def ask(self, store: Store, verb: _Verb, key: str, args: tuple[Any, ...], deadline_s: float) -> Any:
        """Send a request, wait for its answer, and return or raise that."""
        number, future = next(self.numbers), Future[_Answer]()
        try:
            with self._sending:
                if self.ended:
                    raise EOFError
                self._waiting[number] = future
                dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
                self._send(pickle.dumps(_Request(number, pickle.dumps(store), verb, key, args, dropped)))
            answer = future.result(deadline_s + _GRACE_S)
        except TimeoutError as error:
            self._end()
            reason = "the process that reads for this forked one does not answer"
            raise _outcomes.timed_out(verb, object_uri(store.uri, key), reason) from error
        except (EOFError, OSError) as error:
            reason = f"the process that reads for this forked one has ended (status {self._process.poll()})"
            raise _outcomes.failed(verb, object_uri(store.uri, key), reason) from error
        finally:
            self._waiting.pop(number, None)
        store.retries += answer.retries
        if answer.failed:
            raise pickle.loads(answer.payload)
        return answer.payload.toreadonly() if verb == "get" else pickle.loads(answer.payload)

    def abandon(self) -> None:
        """Let go in a forked copy: the sidecar is not its child, and lives while the socket is open."""
        self.ended = True
        self._sending = threading.Lock()
        self._socket.close()
        self._process.returncode = 0

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(_REQUEST.pack(len(data)) + data)
        except BaseException:  # such as Ctrl-C, with half of the request sent
            self._end()
            raise

    def _receive(self) -> None:
        try:
            while True:
                self._receive_answer()
        except (EOFError, OSError):
            pass
        finally:
            self._end()
            self._process.wait()
            self._finalizer.cancel()
            with self._sending:  # whoever was let in has sent, and waits
                self._socket.close()
            for number in list(self._waiting):
                if future := self._waiting.pop(number, None):
                    future.set_exception(EOFError())

    def _receive_answer(self) -> None:
        number, size, retries, failed = _ANSWER.unpack(_receive_exactly(self._socket, _ANSWER.size))
        payload = _receive_exactly(self._socket, size)
        if future := self._waiting.pop(number, None):
            future.set_result(_Answer(payload, retries, failed))

    def _end(self) -> None:
        self.ended = True
        self._process.kill()

    def _close(self) -> None:
        self._end()
        self._receiver.join(timeout=5)


_starting = threading.Lock()
_sidecar: _Sidecar | None = None


def _sidecar_of_this_process() -> _Sidecar:
    global _sidecar
    with _starting:
        if _sidecar is None or _sidecar.ended:
            try:
                _sidecar = _Sidecar()
            except OSError as error:
                raise StorageError(
                    f"cannot start the process that reads for this forked one: {error}; free resources, "
                    f'or start workers with the "spawn" or "forkserver" method'
                ) from error
        return _sidecar


def _begin_anew() -> None:
    global _sidecar
    if _sidecar is not None:
        _sidecar.abandon()
        _sidecar = None
    _starting.release()


# No fork while a sidecar starts: the copy would hold both ends of its socket, and neither side would see the other end.
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_begin_anew)


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
    """Be the sidecar: answer what comes from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = socket.socket(fileno=0)
    server = _Server(source)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        while True:
            (size,) = _REQUEST.unpack(_receive_exactly(source, _REQUEST.size))
            pool.submit(server.answer, pickle.loads(_receive_exactly(source, size)))
    finally:
        os._exit(0)  # nobody waits for what is still running


class _Server:
    """The sidecar's end: real stores, listings under way, and one answer sent at a time."""

    def __init__(self, target: socket.socket) -> None:
        self._target = target
        self._stores: dict[bytes, Any] = {}
        self._listings: dict[int, Iterator[list[ObjectInfo]]] = {}
        self._opening, self._sending = threading.Lock(), threading.Lock()

    def answer(self, request: _Request) -> None:
        """Do what a request asks for and send what comes of it."""
        try:
            value, failed = self._read(request), False
        except PenstockError as error:
            value, failed = error, True
        except BaseException as error:  # a panic of obstore is not even an Exception, and whoever asked waits
            value, failed = StorageError(f"cannot {request.verb} {request.key}: {error!r}; report this"), True
        payload = value if isinstance(value, memoryview) else pickle.dumps(value)
        store = self._stores.get(request.store)
        with self._sending:
            retries = 0
            if store is not None:
                retries, store.retries = store.retries, 0
            self._target.sendall(_ANSWER.pack(request.number, len(payload), retries, failed))
            self._target.sendall(payload)

    def _read(self, request: _Request) -> Any:
        for listing in request.dropped:
            self._listings.pop(listing, None)
        with self._opening:
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
