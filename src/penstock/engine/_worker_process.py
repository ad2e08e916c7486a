"""Decode and format batches in another process, for decoders and transforms that hold the GIL, or to use many cores.

The contract; if the code disagrees with this list, the code is wrong:

- Large arrays travel in anonymous shared memory without a copy, and a returned batch stays valid while the user
  references it. Everything else is pickled; so are large arrays if the user holds very many, because each is an open
  file descriptor.
- The process is spawned, never forked, for the first batch. It exits when its end of the pipe is closed, so also when
  the parent dies. It ignores Ctrl-C from the start: the parent decides.
- If it dies, it is restarted with the same batch, twice; then the batch fails with the exit code of the process.
- `close` kills the process at once; the batch in progress fails, and no process is started for it.
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

from penstock.device import MIN_SHARED_BYTES, SharedMemoryHandle, SharedMemoryPool, SharedMemoryReceiver
from penstock.engine._batch_builder import BadRowsError, BatchFormatter, RowKeys
from penstock.engine._decode import ColumnDecoder, Columns
from penstock.engine._stats import StatsCollector
from penstock.errors import InvalidInputError, PenstockError, SampleError
from penstock.types import Buffer

_MAX_ATTEMPTS = 3
_JOIN_S = 1.0
_MAX_ARRAYS, _MIN_ARRAYS = 256, 8
"""Received arrays that stay in shared memory: over all processes, and at least for each."""


class ProcessFormatter:
    """A formatter that decodes and formats batches in a worker process."""

    def __init__(
        self, formatter: BatchFormatter, decoder: ColumnDecoder, collector: StatsCollector, *, processes: int
    ) -> None:
        """`processes` is the number of such processes of the loader."""
        self._formatter, self._decoder, self._collector = copy(formatter), decoder, collector
        self._formatter.in_worker_process = True
        self.needs_keys, self.by_rows, self.on_host, self.in_worker_process = (
            self._formatter.needs_keys,
            True,
            True,
            False,
        )
        self._max_arrays = max(_MIN_ARRAYS, _MAX_ARRAYS // processes)
        self._receiver, self._pool = SharedMemoryReceiver(), SharedMemoryPool(self._max_arrays)
        try:
            self._pickled = pickle.dumps((self._formatter, decoder, self._pool))
        except Exception as error:
            raise InvalidInputError(
                'penstock.Workers(…, "process") needs transforms and decoders that another process can import: '
                f"functions defined at the top of a module, not lambdas or inner functions ({error}); or use threads"
            ) from error
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._closings = 0
        self._open = False
        self._lock = RLock()  # reentrant: garbage collection may call `close` in the thread that waits for a response

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """See `BatchFormatter`."""
        closings = self._closings
        for _ in range(_MAX_ATTEMPTS):
            try:
                with self._lock:
                    if not self._open:
                        raise EOFError
                    response = self._request(columns, keys, closings)
            except (EOFError, OSError) as error:
                with self._lock:
                    ended = self._reap()
                if not self._open or closings != self._closings:
                    raise PenstockError("this loader was closed while it was read") from error
                self._collector.note(f"a worker process ended ({ended}) and was started again")
                last = error
            else:
                if isinstance(response, Exception):
                    raise response
                return response
        raise PenstockError(
            f"a worker process ended {_MAX_ATTEMPTS} times while it made the same batch, the last time {ended}; "
            "look for a transform or a decoder that crashes or takes too much memory"
        ) from last

    def format_many(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:  # noqa: ARG002
        """See `BatchFormatter`; never applies, because a worker process exists for transforms."""
        return None

    def open(self) -> None:
        """Allow a process to be started."""
        self._open = True

    def close(self) -> None:
        """Kill the process; none is started until `open`."""
        self._open = False
        self._closings += 1
        process = self._process
        if process is not None:
            process.kill()  # unblocks the thread that waits with the lock
        with self._lock:
            self._reap()

    def to_transport(self, value: Any) -> Any:
        """See `BatchFormatter`."""
        return value

    from_transport = to_transport

    def _request(self, columns: Columns, keys: RowKeys | None, closings: int) -> Any:
        """The formatted batch, or the exception that the process raised."""
        pipe = self._pipe or self._start(closings)
        encoded = {name: _concatenated(list(columns[name]), self._pool) for name in self._decoder.fields}
        _send(pipe, self._pool, *_pack(({**columns, **encoded}, keys)))
        response, decoding_s = _receive(pipe, self._receiver)
        self._collector.add_time("transform", "busy", -decoding_s)
        return response if isinstance(response, Exception) else self._formatter.from_transport(response)

    def _start(self, closings: int) -> Connection:
        context = get_context("spawn")
        self._pipe, child_end = context.Pipe()
        process = context.Process(target=_serve, args=(child_end,), daemon=True, name="penstock-worker")
        resource_tracker.ensure_running()  # started later, it would unblock Ctrl-C
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited, until the process ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._process = process
        child_end.close()
        if closings != self._closings:
            process.kill()
        self._pipe.send_bytes(self._pickled)
        return self._pipe

    def _reap(self) -> str:
        """Join the process, killing it if necessary; returns how it ended."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        self._receiver, self._pool = (
            SharedMemoryReceiver(),
            SharedMemoryPool(self._max_arrays),
        )  # buffers held by the process are lost
        if process is None:
            return "closed"
        process.join(_JOIN_S)
        if process.exitcode is None:  # it closed its pipe but did not exit
            process.kill()
            process.join(_JOIN_S)
        return f"exit code {process.exitcode}"


def _serve(pipe: Connection) -> None:
    """Main function of the process: format batches until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(EOFError, ConnectionError):  # the other end is closed
        formatter, decoder, pool = pickle.loads(pipe.recv_bytes())
        receiver = SharedMemoryReceiver()
        while True:
            _respond(pipe, receiver, pool, formatter, decoder)


def _respond(
    pipe: Connection,
    receiver: SharedMemoryReceiver,
    pool: SharedMemoryPool,
    formatter: BatchFormatter,
    decoder: ColumnDecoder,
) -> None:
    columns, keys = _receive(pipe, receiver)
    started = time.perf_counter()
    decoding_s = 0.0
    try:
        encoded = {name: columns[name].split() for name in decoder.fields}
        decoded, bad = decoder.columns({**columns, **encoded}, pool.allocate)
        decoding_s = time.perf_counter() - started
        if bad:
            raise BadRowsError(bad, undecodable=True)
        response = _pack((formatter.to_transport(formatter(decoded, keys)), decoding_s))
    except Exception as error:
        response = _pack((_portable(error), decoding_s))
    _send(pipe, pool, *response)


def _portable(error: Exception) -> Exception:
    """The error, or an equivalent one that can be unpickled in another process."""
    if isinstance(error, BadRowsError):
        failures = {row: _portable(reason) for row, reason in error.failures.items()}
        return BadRowsError(failures, undecodable=error.undecodable)
    lines = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = SampleError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the worker process:\n{lines}")
    return error


class _Concatenated(NamedTuple):
    """A column of encoded values, concatenated."""

    data: npt.NDArray[np.uint8]
    sizes: list[int | None]
    """None for a null."""

    def split(self) -> list[memoryview | None]:
        """Views of the values."""
        values: list[memoryview | None] = []
        data, end = self.data.data, 0
        for size in self.sizes:
            values.append(None if size is None else data[end : end + size])
            end += size or 0
        return values


def _concatenated(values: Sequence[Buffer | None], pool: SharedMemoryPool) -> _Concatenated:
    there = [np.frombuffer(value, np.uint8) for value in values if value is not None]
    data = pool.allocate((sum(map(len, there)),), np.uint8)
    np.concatenate([data[:0], *there], out=data)
    return _Concatenated(data, [None if value is None else len(value) for value in values])


class _ArrayRef(NamedTuple):
    """Placeholder for an array that is sent separately."""

    array: int


class _SharedArray(NamedTuple):
    """An array in shared memory."""

    handle: SharedMemoryHandle
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _pack(value: Any) -> tuple[bytes, list[npt.NDArray[Any]]]:
    """A value pickled with placeholders for its large arrays, and the arrays."""
    arrays: list[npt.NDArray[Any]] = []

    def replace(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject or leaf.nbytes < MIN_SHARED_BYTES:
            return leaf
        arrays.append(leaf)
        return _ArrayRef(len(arrays) - 1)

    try:
        return bytes(ForkingPickler.dumps(map_leaves(replace, value))), arrays
    except Exception as error:
        raise InvalidInputError(
            'with penstock.Workers(…, "process"), what transforms return is sent from one process to another, and this '
            f"cannot be pickled ({error}); return something else, or use threads"
        ) from error


def _send(pipe: Connection, pool: SharedMemoryPool, pickled: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
    pipe.send([_share(array, pool) for array in arrays])
    pipe.send_bytes(pickled)


def _share(array: npt.NDArray[Any], pool: SharedMemoryPool) -> _SharedArray | npt.NDArray[Any]:
    """The array as shared memory, copied there if it is not yet; the array itself if that is not possible."""
    handle = pool.export(array.ctypes.data, array.nbytes) if array.flags.c_contiguous else None
    if handle is None:
        copied = pool.allocate(array.shape, array.dtype)
        copied[...] = array
        handle = pool.export(copied.ctypes.data, copied.nbytes)
    return array if handle is None else _SharedArray(handle, array.shape, array.dtype)


def _receive(pipe: Connection, receiver: SharedMemoryReceiver) -> Any:
    arrays = [
        receiver.attach(sent.handle).view(sent.dtype).reshape(sent.shape) if isinstance(sent, _SharedArray) else sent
        for sent in pipe.recv()
    ]
    value = pickle.loads(pipe.recv_bytes())
    return map_leaves(
        lambda leaf: arrays[leaf.array] if isinstance(leaf, _ArrayRef) else leaf, value, leaf_type=_ArrayRef
    )


def map_leaves(fn: Callable[[Any], Any], value: Any, *, leaf_type: type | None = None) -> Any:
    """Apply `fn` to the leaves of nested dictionaries, lists and tuples; values of type `leaf_type` are leaves too."""
    if leaf_type is not None and isinstance(value, leaf_type):
        return fn(value)
    if isinstance(value, dict):
        mapped = {key: map_leaves(fn, inner, leaf_type=leaf_type) for key, inner in value.items()}
        if type(value) is dict:
            return mapped
        same = copy(value)
        same.update(mapped)
        return same
    if type(value) in (list, tuple):
        return type(value)(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value)
    if type(value).__bases__ == (tuple,) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value))
    return fn(value)
