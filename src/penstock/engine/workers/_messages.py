"""What a loader and its worker processes tell each other, and how values travel.

A message is a tuple, because the loop's process unpickles several for each batch. It is one packet of at most a page:
whatever is larger lies in shared memory whose descriptor accompanies it. So no value fills the buffer of a socket, and
a process that relays a message copies no value.
"""

import errno
import io
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import numpy.typing as npt

from penstock.device import SharedMemory
from penstock.engine._stats import BadSample, Counters
from penstock.errors import InvalidInputError, PenstockError, SampleError, text_of

_MAX_PACKET_BYTES = 4 << 10
"""Larger messages and values are passed in shared memory; smaller ones are cheaper to copy."""
_ALIGNMENT = 64
_MAX_DESCRIPTORS = 8
_SEND_BUFFER_BYTES = 32 << 10
"""Of a worker process: some packets, because the system limits the descriptors that are on their way."""
_REFUSED_S, _RETRY_S = 60.0, 0.01


class Shipment(NamedTuple):
    """A pickled value, and where its arrays are."""

    pickled: bytes
    """Empty if it is the last of the arrays."""
    arrays: list[tuple[bool, int, int]]
    """Of each array: whether it is in the slot of its span, instead of in shared memory of its own; start and size."""
    has_memory: bool
    """Whether a descriptor of shared memory accompanies the shipment."""


class RemoteError(NamedTuple):
    """An error of a worker process on its way: pickled as far as it can be, and as text."""

    pickled: bytes
    text: str
    traceback: str

    def revive(self) -> Exception:
        """The error with the traceback of its process, or an equivalent one if it cannot be made here."""
        made: Exception = SampleError(self.text)
        with suppress(Exception):
            found = pickle.loads(self.pickled)
            made = found if isinstance(found, Exception) else made
        made.add_note(f"In the worker process:\n{self.traceback}")
        return made


class Run(NamedTuple):
    """To the reader: start to read at a position of an epoch, into shared memory whose descriptor accompanies this.

    Ends any earlier run.
    """

    run: int
    epoch: int
    consumed: int
    number: int
    """Of the first span from there on."""
    first: int
    """The first span to publish: this process may replace one that published those before."""
    limit: int
    """See `Release`."""


class Release(NamedTuple):
    """To the reader: some spans are built, so that their rows can be freed; those below `limit` can be built next."""

    run: int
    numbers: Sequence[int]
    limit: int


class Pause(NamedTuple):
    """To the reader: start no requests until the next `Resume`."""

    run: int


class Resume(NamedTuple):
    """To the reader: read, at most up to the end of the epoch after this one."""

    run: int
    epoch: int


class Stop(NamedTuple):
    """To the reader: end a run."""

    run: int


class Published(NamedTuple):
    """From the reader: a span can be built, or not because of an error."""

    run: int
    number: int
    place: tuple[int, int]
    """Start and size of its task in shared memory."""
    blocks_drawn: int
    padding: int
    error: RemoteError | None
    stats: Counters | None
    """None shortly after the last ones."""


class Build(NamedTuple):
    """To a builder: make the batches of a span, or write some of its rows."""

    run: int
    number: int
    memory: int
    """The shared memory of the window."""
    place: tuple[int, int]
    """Start and size of the task there."""
    slot: int
    rows: tuple[int, int] | None
    """The rows to write to the slot; None to make all batches."""
    new_memory: bool
    """Whether the descriptor of the memory accompanies this, and takes the place of earlier ones."""
    new_slot: bool
    """Whether the descriptor of the slot accompanies this."""
    dropped: Sequence[int]
    """Slots that are not used any more."""


class Built(NamedTuple):
    """From a builder: what was built of a span."""

    run: int
    number: int
    rows: tuple[int, int] | None
    batches: Shipment | RemoteError | None
    """The batches, or the error if the first one failed; None if all is in the slot."""
    bad: dict[int, BadSample]
    """By index in the span."""
    failure: tuple[int, RemoteError] | None
    """The first row that could not be used, and why."""
    stats: Counters | None
    """None shortly after the last ones."""


class Failed(NamedTuple):
    """The process cannot start, or, of the reader, the run has failed."""

    run: int | None
    """None if the process could not start."""
    error: RemoteError
    number: int
    """The first span that will not be published or built."""
    stats: Counters


class Fork(NamedTuple):
    """To the template: fork a builder, whose channel accompanies this."""


class Become(NamedTuple):
    """The same without a fork."""


class Forked(NamedTuple):
    """From the template: the builder's process; None if it cannot fork, because it has threads."""

    pid: int | None


class Reap(NamedTuple):
    """To the template: wait for the end of a process."""

    pid: int


class Reaped(NamedTuple):
    """From the template: the exit code of that process."""

    code: int


class StatsUpdate(NamedTuple):
    """Statistics of a process that has sent nothing else for a moment."""

    stats: Counters


class Channel:
    """One end of the connection between a loader and a worker process; raises `OSError` or `EOFError` at its end.

    Any thread may send, one receives. The loop sends a builder no more than a few messages that are not answered, and
    the main thread of the reader does nothing but receive: so the loop never waits for a process that waits for it.
    """

    def __init__(self, end: socket.socket) -> None:
        """Takes over one end of `pair`."""
        self._socket, self._lock = end, threading.Lock()

    @classmethod
    def pair(cls) -> tuple["Channel", socket.socket]:
        """The end of the loader, and the socket of a worker process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors."""
        packet, memory = pickle.dumps((message, len(descriptors)), 5), None
        if len(packet) > _MAX_PACKET_BYTES:
            memory = SharedMemory.create(len(packet))
            memory.bytes[: len(packet)] = np.frombuffer(packet, np.uint8)
            packet, descriptors = b"0", [memory.fd, *descriptors]
        with self._lock:
            self._send_packet(packet, descriptors)

    def _send_packet(self, packet: bytes, descriptors: Sequence[int]) -> None:
        gives_up = time.monotonic() + _REFUSED_S
        while True:
            try:
                socket.send_fds(self._socket, [packet], descriptors)
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                if time.monotonic() > gives_up:
                    raise PenstockError(
                        "the system lets this user pass no more open files between processes; raise the limit of open "
                        "files (ulimit -n), or use fewer worker processes"
                    ) from error
            time.sleep(_RETRY_S)  # until some are received

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and the descriptors that accompany it, which the caller closes."""
        packet, descriptors = self._receive_packet()
        if packet == b"0":
            message, count = pickle.loads(SharedMemory(descriptors.pop(0)).bytes.data)
        else:
            message, count = pickle.loads(packet)
        assert len(descriptors) == count
        return message, descriptors

    def _receive_packet(self) -> tuple[bytes, list[int]]:
        packet, descriptors, flags, _ = socket.recv_fds(
            self._socket, _MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if flags & socket.MSG_CTRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            raise PenstockError(
                "this process has too many open files to receive a batch; raise the limit (ulimit -n), or close some"
            )
        if not packet:
            raise EOFError
        return packet, list(descriptors)

    def close(self) -> None:
        self._socket.close()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes of scripts and notebooks so that the program that has them gets its own."""

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler`."""
        if isinstance(value, type) and value.__module__ == "__main__":
            return _class_of_main, (value.__qualname__, cloudpickle.dumps(value))
        return super().reducer_override(value)


def _class_of_main(name: str, by_value: bytes) -> Any:
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else pickle.loads(by_value)


def _dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file, 5, buffer_callback=buffer_callback).dump(value)
        return file.getvalue()


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
        if view.nbytes < _MAX_PACKET_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        pickled = pickle.dumps(value, 5, buffer_callback=is_small)
    except BaseException:  # such as a class of a notebook
        buffers.clear()
        try:
            pickled = _dumps(value, is_small)
        except BaseException as error:  # a user's object may raise anything
            raise InvalidInputError(
                "what transforms and decoders return is sent from one process to another, and this cannot be pickled "
                f'({text_of(error)}); return something else, or pass num_workers=penstock.Workers(…, "thread")'
            ) from error
    if len(pickled) >= _MAX_PACKET_BYTES // 2:
        buffers.append(memoryview(pickled))
        pickled = b""
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
    pickled = shipment.pickled or buffers.pop()
    try:
        return pickle.loads(pickled, buffers=buffers)
    except Exception as error:
        raise InvalidInputError(
            "what transforms and decoders return is sent from one process to another, and this cannot be unpickled "
            f'there ({text_of(error)}); return something else, or pass num_workers=penstock.Workers(…, "thread")'
        ) from error


def portable(error: BaseException) -> RemoteError:
    """An error for another process; whatever the error itself raises is suppressed."""
    pickled, lines = b"", ""
    with suppress(BaseException):
        pickled = _dumps(error)
    with suppress(BaseException):
        lines = "".join(traceback.format_exception(error))
    return RemoteError(pickled, f"{type(error).__name__}: {text_of(error)}", lines)
