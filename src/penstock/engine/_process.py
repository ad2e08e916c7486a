"""Decode and finish batches in another process, for decoders and transforms that hold the GIL, or many cores.

The contract; if the code disagrees with this list, the code is wrong:

- Large arrays cross in memory that both processes map and that has no name, and are not copied there; what the process
  made of a batch is the loop's for as long as it holds it. Everything else is pickled; so are large arrays where the
  loop holds very many, because each is an open file.
- The process is spawned, never forked, when the first batch comes; it ends when its end of the pipe is closed, so also
  when this process dies. It ignores Ctrl-C, from the first moment on: whoever started it decides.
- If it dies, another is started and gets the same batch, twice; then the batch fails, and says how the process ended.
- `close` ends the process at once, also while it is at work: then that batch fails, and nothing is started for it.
"""

import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device import MIN_BYTES, Inbox, Outbox, Parcel
from penstock.engine._decode import Columns, Decoding
from penstock.engine._stats import Gauge
from penstock.engine._work import BadRows, Finish, RowKeys
from penstock.errors import InvalidInputError, PenstockError, SampleError
from penstock.types import Buffer

_DEATHS = 3
_JOIN_S = 1.0
_MOST_ARRAYS, _LEAST_ARRAYS = 256, 8
"""Arrays that are not copied when they come from another process: of all together, and of each."""


class ProcessFinish:
    """Decodes and finishes batches in a process of its own, as would be done here."""

    def __init__(self, finish: Finish, decoding: Decoding, gauge: Gauge, *, processes: int) -> None:
        """One of so many."""
        self._finish, self._decoding, self._gauge = copy(finish), decoding, gauge
        self._finish.alone = True
        self.needs_keys, self.by_rows, self.on_host, self.alone = self._finish.needs_keys, True, True, False
        self._most_arrays = max(_LEAST_ARRAYS, _MOST_ARRAYS // processes)
        self._inbox, self._outbox = Inbox(), Outbox(self._most_arrays)
        try:
            self._pickled = pickle.dumps((self._finish, decoding, self._outbox))
        except Exception as error:
            raise InvalidInputError(
                'worker_type="process" needs transforms and decoders that another process can import: functions '
                f'defined at the top of a module, not lambdas or inner functions ({error}); or use worker_type="thread"'
            ) from error
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
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
                self._gauge.note(f"a worker process ended ({ended}) and was started again")
                last = error
            else:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise PenstockError(
            f"a worker process ended {_DEATHS} times while it made the same batch, the last time {ended}; "
            "look for a transform or a decoder that crashes or takes too much memory"
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
        encoded = {name: _joined(list(columns[name]), self._outbox) for name in self._decoding.fields}
        _send(pipe, self._outbox, *_packed(({**columns, **encoded}, keys)))
        answer, decoding_s = _receive(pipe, self._inbox)
        self._gauge.add("transform", "busy", -decoding_s)
        return answer if isinstance(answer, Exception) else self._finish.lift(answer)

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
        self._inbox, self._outbox = Inbox(), Outbox(self._most_arrays)  # what the process has does not come back
        if process is None:
            return "closed"
        process.join(_JOIN_S)
        if process.exitcode is None:  # it closed its pipe, or is stuck
            process.kill()
            process.join(_JOIN_S)
        return f"exit code {process.exitcode}"


def _serve(pipe: Connection) -> None:
    """The other process: make batches of what comes until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError, ConnectionError):  # the other end is closed
        finish, decoding, outbox = pickle.loads(pipe.recv_bytes())
        inbox = Inbox()
        while True:
            _answer(pipe, inbox, outbox, finish, decoding)


def _answer(pipe: Connection, inbox: Inbox, outbox: Outbox, finish: Finish, decoding: Decoding) -> None:
    columns, keys = _receive(pipe, inbox)
    started = time.perf_counter()
    decoding_s = 0.0
    try:
        encoded = {name: columns[name].apart() for name in decoding.fields}
        decoded, bad = decoding.columns({**columns, **encoded}, outbox.empty)
        decoding_s = time.perf_counter() - started
        if bad:
            raise BadRows(bad, undecodable=True)
        answer = _packed((finish.lower(finish(decoded, keys)), decoding_s))
    except Exception as error:
        answer = _packed((_portable(error), decoding_s))
    _send(pipe, outbox, *answer)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, such that another process can unpickle it."""
    if isinstance(error, BadRows):
        failures = {row: _portable(reason) for row, reason in error.failures.items()}
        return BadRows(failures, undecodable=error.undecodable)
    lines = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = SampleError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the worker process:\n{lines}")
    return error


class _Joined(NamedTuple):
    """A column of encoded values, one behind the other."""

    data: npt.NDArray[np.uint8]
    sizes: list[int | None]
    """None where there is no value."""

    def apart(self) -> list[memoryview | None]:
        """The values again, where they are."""
        values: list[memoryview | None] = []
        whole, end = self.data.data, 0
        for size in self.sizes:
            values.append(None if size is None else whole[end : end + size])
            end += size or 0
        return values


def _joined(values: Sequence[Buffer | None], outbox: Outbox) -> _Joined:
    there = [np.frombuffer(value, np.uint8) for value in values if value is not None]
    data = outbox.empty((sum(map(len, there)),), np.uint8)
    np.concatenate([data[:0], *there], out=data)
    return _Joined(data, [None if value is None else len(value) for value in values])


class _Place(NamedTuple):
    """Stands for an array that is sent beside the rest."""

    number: int


class _Sent(NamedTuple):
    """Such an array."""

    parcel: Parcel
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _packed(value: Any) -> tuple[bytes, list[npt.NDArray[Any]]]:
    """A value with places instead of large arrays, pickled, and the arrays."""
    arrays: list[npt.NDArray[Any]] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject or leaf.nbytes < MIN_BYTES:
            return leaf
        arrays.append(leaf)
        return _Place(len(arrays) - 1)

    try:
        return bytes(ForkingPickler.dumps(map_leaves(place, value))), arrays
    except Exception as error:
        raise InvalidInputError(
            f'with worker_type="process", what transforms return is sent from one process to another, which this '
            f'cannot be ({error}); return something else, or use worker_type="thread"'
        ) from error


def _send(pipe: Connection, outbox: Outbox, pickled: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
    pipe.send([_posted(array, outbox) for array in arrays])
    pipe.send_bytes(pickled)


def _posted(array: npt.NDArray[Any], outbox: Outbox) -> _Sent | npt.NDArray[Any]:
    """How an array is sent: as memory that was taken out of the outbox, or is now; as it is where that cannot be."""
    parcel = outbox.post(array.ctypes.data, array.nbytes) if array.flags.c_contiguous else None
    if parcel is None:
        copied = outbox.empty(array.shape, array.dtype)
        copied[...] = array
        parcel = outbox.post(copied.ctypes.data, copied.nbytes)
    return array if parcel is None else _Sent(parcel, array.shape, array.dtype)


def _receive(pipe: Connection, inbox: Inbox) -> Any:
    arrays = [
        inbox.open(sent.parcel).view(sent.dtype).reshape(sent.shape) if isinstance(sent, _Sent) else sent
        for sent in pipe.recv()
    ]
    value = pickle.loads(pipe.recv_bytes())
    return map_leaves(lambda leaf: arrays[leaf.number] if isinstance(leaf, _Place) else leaf, value, whole=_Place)


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
