"""What a loader and its worker processes tell each other, and how values travel.

A message is a tuple, because the loop's process unpickles several for each batch. Large arrays are not pickled, but lie
in shared memory whose descriptor accompanies the message. So a process that relays a message copies no array.
"""

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import numpy.typing as npt

from penstock.device import SharedMemory
from penstock.engine._stats import BadSample, WorkerStats
from penstock.errors import InvalidInputError, SampleError
from penstock.plan import Places, SpanSteps

_MIN_SHARED_BYTES = 4 << 10
"""Smaller arrays are cheaper to pickle."""
_ALIGNMENT = 64
_MAX_DESCRIPTORS = 128
"""Descriptors in one system call."""


class Shipment(NamedTuple):
    """A pickled value, and where its arrays are."""

    pickled: bytes
    arrays: list[tuple[bool, int, int]]
    """Of each array: whether it is in the slot of its span, instead of in shared memory of its own; start and size."""
    has_memory: bool
    """Whether a descriptor of shared memory accompanies the shipment."""


class Run(NamedTuple):
    """Start to read at a position of an epoch; ends any earlier run."""

    run: int
    epoch: int
    consumed: int
    number: int
    """Of the first span from there on."""
    first: int
    """The first span to build: this process may replace one that built those before."""


class Assign(NamedTuple):
    """Build the spans below `limit`, in these slots."""

    run: int
    slots: Mapping[int, int]
    """The slot of each span, by its number."""
    new: Sequence[int]
    """Slots whose descriptors accompany the message."""
    dropped: Sequence[int]
    """Slots that are not used any more."""
    limit: int


class Pause(NamedTuple):
    """Start no requests until the next `Resume`."""

    run: int


class Resume(NamedTuple):
    """Read, at most up to the end of the epoch after this one."""

    run: int
    epoch: int


class Stop(NamedTuple):
    """End a run."""

    run: int


class Finish(NamedTuple):
    """Make the batches of a span whose rows are all in its slot, but for the columns in `parts`."""

    run: int
    steps: SpanSteps
    slot: int
    spare: int | None
    """A slot for the batches, if the process has none; then that of the span is its next one."""
    parts: Sequence[tuple[Places, Shipment]]
    bad: dict[int, BadSample]
    failure: tuple[int, Exception] | None


class Part(NamedTuple):
    """A process has written its rows of a span; `shipment` has the columns that are not in the slot."""

    run: int
    number: int
    places: Places
    shipment: Shipment | None
    bad: dict[int, BadSample]
    """By index in the span."""
    failure: tuple[int, Exception] | None
    blocks_drawn: int
    stats: WorkerStats | None
    """None shortly after the last ones."""


class FinishedSpan(NamedTuple):
    """The batches of a span; `batches` is the error if the first one failed."""

    run: int
    number: int
    slot: int
    """Where arrays of the batches are: the slot of the span, or the spare one in exchange for it."""
    batches: Shipment | Exception
    bad: dict[int, BadSample]
    stats: WorkerStats | None


class Failed(NamedTuple):
    """The run has failed in this process, at the first span that it has not answered."""

    run: int | None
    """None if the process could not start."""
    error: BaseException
    stats: WorkerStats


class StatsUpdate(NamedTuple):
    """Statistics of a process that has sent nothing else for a moment."""

    stats: WorkerStats


def pickle_message(message: Any, descriptors: int) -> bytes:
    """A message that is accompanied by some descriptors, for several channels."""
    return pickle.dumps((message, descriptors), 5)


class Channel:
    """One end of the connection between a loader and a worker process; raises `OSError` or `EOFError` at its end."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor of a socket."""
        self._connection = Connection(fd)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def poll(self, timeout_s: float | None) -> bool:
        """Wait for a message; returns whether one is there."""
        return self._connection.poll(timeout_s)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors."""
        self.send_pickled(pickle_message(message, len(descriptors)), descriptors)

    def send_pickled(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send what `pickle_message` returned."""
        with self._lock:
            self._connection.send_bytes(message)
            if descriptors:
                with socket.socket(fileno=os.dup(self.fileno())) as sender:
                    for first in range(0, len(descriptors), _MAX_DESCRIPTORS):
                        socket.send_fds(sender, [b"1"], descriptors[first : first + _MAX_DESCRIPTORS])

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and the descriptors that accompany it, which the caller closes."""
        message, count = pickle.loads(self._connection.recv_bytes())
        descriptors: list[int] = []
        if count:
            with socket.socket(fileno=os.dup(self.fileno())) as receiver:
                while len(descriptors) < count:
                    data, found, _, _ = socket.recv_fds(receiver, 1, min(count - len(descriptors), _MAX_DESCRIPTORS))
                    if not data or not found:
                        raise EOFError
                    descriptors += found
        return message, descriptors

    def close(self) -> None:
        self._connection.close()


def pack(
    value: Any, slot: npt.NDArray[np.uint8] | None = None, *, into_slot: bool = False
) -> tuple[Shipment, SharedMemory | None]:
    """Prepare a value for another process, and put its large arrays into shared memory.

    Arrays that are in `slot` stay there. With `into_slot`, others are written to it, as far as there is room; else to
    new memory.
    """
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _MIN_SHARED_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        pickled = pickle.dumps(value, 5, buffer_callback=is_small)
    except Exception:  # such as a class of a notebook
        buffers.clear()
        try:
            pickled = cloudpickle.dumps(value, 5, buffer_callback=is_small)
        except Exception as error:
            raise InvalidInputError(
                "what transforms and decoders return is sent from one process to another, and this cannot be pickled "
                f'({error}); return something else, or pass num_workers=penstock.Workers(…, "thread")'
            ) from error
    views = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    base, size = (0, 0) if slot is None else (int(slot.ctypes.data), len(slot))
    starts = [int(view.ctypes.data) - base for view in views]
    inside = [start >= 0 and start + len(view) <= size for start, view in zip(starts, views, strict=True)]
    gaps = _gaps([(s, s + len(v)) for s, v, known in zip(starts, views, inside, strict=True) if known], size)
    end = 0
    for index, view in enumerate(views):
        if inside[index]:
            continue
        gap = next((number for number, (first, last) in enumerate(gaps) if last - first >= len(view)), None)
        if gap is None or slot is None or not into_slot:
            starts[index], end = end, end + _aligned(len(view))
            continue
        starts[index], last = gaps[gap]
        gaps[gap] = min(starts[index] + _aligned(len(view)), last), last
        inside[index] = True
        slot[starts[index] : starts[index] + len(view)] = view
    memory = SharedMemory.create(end) if end else None
    for start, view, known in zip(starts, views, inside, strict=True):
        if memory is not None and not known:
            memory.bytes[start : start + len(view)] = view
    arrays = [(known, start, len(view)) for known, start, view in zip(inside, starts, views, strict=True)]
    return Shipment(pickled, arrays, memory is not None), memory


def _gaps(taken: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The aligned ranges of `size` bytes that are not taken."""
    found: list[tuple[int, int]] = []
    end = 0
    for first, last in [*sorted(taken), (size, size)]:
        if first > end:
            found.append((end, first))
        end = max(end, _aligned(last))
    return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def unpack(shipment: Shipment, descriptor: int | None, slot: npt.NDArray[np.uint8] | None = None) -> Any:
    """The value of a shipment; its arrays are views of `slot`, and of shared memory whose descriptor this closes."""
    memory = None
    if descriptor is not None:
        shared = SharedMemory(descriptor)
        memory = shared.bytes
    buffers: list[Any] = []
    for in_slot, start, size in shipment.arrays:
        source = slot if in_slot else memory
        assert source is not None
        buffers.append(source[start : start + size])
    return pickle.loads(shipment.pickled, buffers=buffers)


def portable(error: BaseException) -> Exception:
    """The error with the traceback of this process, or an equivalent one that another process can unpickle."""
    lines = "".join(traceback.format_exception(error))
    made = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        made = SampleError(f"{type(error).__name__}: {error}")
    if not isinstance(made, Exception):
        made = SampleError(f"{type(error).__name__}: {error}")
    made.add_note(f"In the worker process:\n{lines}")
    return made
