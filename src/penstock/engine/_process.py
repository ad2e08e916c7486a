"""Finish batches in another process, for transforms that hold the GIL.

The contract; if the code disagrees with this list, the code is wrong:

- Arrays cross in memory that both processes map and that has no name; everything else is pickled.
- The process is spawned, never forked, when the first batch comes; it ends when its end of the pipe is closed, so also
  when this process dies. It ignores Ctrl-C, from the first moment on: whoever started it decides.
- If it dies, another is started and gets the same batch, twice; then the batch fails, and says how the process ended.
- `close` ends the process at once, also while it is at work: then that batch fails, and nothing is started for it.
"""

import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from penstock.device import HostBuffers, SharedMemory
from penstock.engine._collate import Columns
from penstock.engine._work import BadRows, Finish, RowKeys
from penstock.errors import InvalidInputError, PenstockError, SampleError

_ALIGNMENT = 64
_DEATHS = 3
_JOIN_S = 1.0
_MIN_SHARED_BYTES = 256


class _Array(NamedTuple):
    """Where in the shared memory an array is."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ProcessFinish:
    """Finishes batches in a process of its own, as `finish` would here."""

    def __init__(self, finish: Finish, note: Callable[[str], None]) -> None:
        self._finish, self._note = copy(finish), note
        self._finish.alone = True
        self.needs_keys, self.by_rows, self.on_host, self.alone = self._finish.needs_keys, True, True, False
        try:
            self._pickled = pickle.dumps(self._finish)
        except Exception as error:
            raise InvalidInputError(
                'worker_type="process" needs transforms that another process can import: functions defined at the top '
                f'of a module, not lambdas or inner functions ({error}); or use worker_type="thread"'
            ) from error
        self._buffers = HostBuffers(keep_bytes=256 << 20)
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._sent: SharedMemory | None = None
        self._received: SharedMemory | None = None
        self._closings = 0
        self._open = False
        self._lock = RLock()  # the garbage collector may close this in the thread that waits for an answer

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """See `Finish`."""
        closings = self._closings
        for _ in range(_DEATHS):
            try:
                with self._lock:
                    if not self._open:
                        raise EOFError
                    answer = self._ask(columns, keys, closings)
            except (EOFError, OSError) as error:
                with self._lock:
                    ended = self._bury()
                if not self._open or closings != self._closings:
                    raise PenstockError("this loader was closed while it was read") from error
                self._note(f"a worker process ended ({ended}) and was started again")
                last = error
            else:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise PenstockError(
            f"a worker process ended {_DEATHS} times while it transformed the same batch, the last time {ended}; "
            "look for a transform that crashes or takes too much memory"
        ) from last

    def all_of(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:  # noqa: ARG002
        """See `Finish`; a transform is what this is for."""
        return None

    def open(self) -> None:
        """Allow for a process to be started."""
        self._open = True

    def close(self) -> None:
        """End the process, and start none until this is opened."""
        self._open = False
        self._closings += 1
        process = self._process
        if process is not None:
            process.kill()  # whoever waits for its answer lets go of the lock
        with self._lock:
            self._bury()

    def lower(self, value: Any) -> Any:
        """See `Finish`."""
        return value

    lift = lower

    def _ask(self, columns: Columns, keys: RowKeys | None, closings: int) -> Any:
        """What the process makes of a batch, or the exception that it met."""
        pipe = self._pipe or self._start(closings)
        packed, arrays, size = _pack(columns)
        if self._sent is None or self._sent.size < size:
            if self._sent is not None:
                self._sent.close()
            self._sent = SharedMemory.create(size)
            pipe.send("memory")
            send_handle(pipe, self._sent.fd, 0)  # a number that only Windows needs
        _write(arrays, self._sent.view)
        pipe.send((packed, keys))
        while (answer := pipe.recv()) == "memory":
            if self._received is not None:
                self._received.close()
            self._received = SharedMemory(recv_handle(pipe))
        if isinstance(answer, Exception):
            return answer
        view = self._received.view if self._received is not None else memoryview(b"")
        return self._finish.lift(_unpack(answer, view, self._copied))

    def _copied(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = self._buffers.empty(array.shape, array.dtype)
        out[...] = array
        return out

    def _start(self, closings: int) -> Connection:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True, name="penstock-worker")
        resource_tracker.ensure_running()  # which would let Ctrl-C in
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._process = process
        theirs.close()
        if closings != self._closings:
            process.kill()
        self._pipe.send_bytes(self._pickled)
        return self._pipe

    def _bury(self) -> str:
        """Forget the process; says how it ended."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        for memory in (self._sent, self._received):
            if memory is not None:
                memory.close()
        self._sent = self._received = None
        if process is None:
            return "closed"
        process.join(_JOIN_S)
        if process.exitcode is None:  # it closed its pipe, or is stuck
            process.kill()
            process.join(_JOIN_S)
        return f"exit code {process.exitcode}"


def _serve(pipe: Connection) -> None:
    """The other process: finish what comes until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError, ConnectionError):  # the other end is closed
        finish: Finish = pickle.loads(pipe.recv_bytes())
        _answer_all(pipe, finish)


def _answer_all(pipe: Connection, finish: Finish) -> None:
    received: SharedMemory | None = None
    sent: SharedMemory | None = None
    while True:
        message = pipe.recv()
        if message == "memory":
            if received is not None:
                received.close()
            received = SharedMemory(recv_handle(pipe))
            continue
        packed, keys = message
        view = received.view if received is not None else memoryview(b"")
        try:
            skeleton, arrays, size = _pack(finish.lower(finish(_unpack(packed, view, lambda array: array), keys)))
            pickled = _pickled(skeleton)
        except Exception as error:
            pipe.send(_portable(error))
            continue
        if sent is None or sent.size < size:
            if sent is not None:
                sent.close()
            sent = SharedMemory.create(size)
            pipe.send("memory")
            send_handle(pipe, sent.fd, 0)
        _write(arrays, sent.view)
        pipe.send_bytes(pickled)


def _pickled(skeleton: Any) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(skeleton))
    except Exception as error:
        raise InvalidInputError(
            f'with worker_type="process", what transforms return is sent from one process to another, which this '
            f'cannot be ({error}); return something else, or use worker_type="thread"'
        ) from error


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, such that another process can unpickle it."""
    if isinstance(error, BadRows):
        return BadRows({row: _portable(reason) for row, reason in error.failures.items()})
    lines = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = SampleError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the worker process:\n{lines}")
    return error


def _pack(value: Any) -> tuple[Any, list[tuple[_Array, np.ndarray[Any, Any]]], int]:
    """A value with places instead of arrays, the arrays, and how many bytes they take."""
    arrays: list[tuple[_Array, np.ndarray[Any, Any]]] = []
    size = 0

    def place(leaf: Any) -> Any:
        nonlocal size
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject or leaf.nbytes < _MIN_SHARED_BYTES:
            return leaf
        found = _Array(size, leaf.shape, leaf.dtype)
        size += -(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT
        arrays.append((found, leaf))
        return found

    return map_leaves(place, value), arrays, size


def _write(arrays: list[tuple[_Array, np.ndarray[Any, Any]]], view: memoryview) -> None:
    for place, array in arrays:
        np.frombuffer(view, place.dtype, array.size, place.start).reshape(place.shape)[...] = array


def _unpack(value: Any, view: memoryview, take: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Any:
    def found(leaf: Any) -> Any:
        if not isinstance(leaf, _Array):
            return leaf
        count = int(np.prod(leaf.shape, dtype=np.int64))
        return take(np.frombuffer(view, leaf.dtype, count, leaf.start).reshape(leaf.shape))

    return map_leaves(found, value, whole=_Array)


def map_leaves(fn: Callable[[Any], Any], value: Any, *, whole: type | None = None) -> Any:
    """The same dictionaries, lists and tuples with other leaves; values of the type `whole` are leaves too."""
    if whole is not None and isinstance(value, whole):
        return fn(value)
    if isinstance(value, dict):
        mapped = {key: map_leaves(fn, inner, whole=whole) for key, inner in value.items()}
        if type(value) is dict:
            return mapped
        same = copy(value)
        same.update(mapped)
        return same
    if type(value) in (list, tuple):
        return type(value)(map_leaves(fn, inner, whole=whole) for inner in value)
    if type(value).__bases__ == (tuple,) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(fn, inner, whole=whole) for inner in value))
    return fn(value)
