"""What a loader and its worker processes tell each other, and how values travel.

A message is a tuple, because the loop's process unpickles several for each batch. It is one packet of at most a page:
whatever is larger lies in shared memory whose descriptor accompanies it. So no value fills the buffer of a socket, and
a process that relays a message copies no value.
"""

import errno
import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.device import SharedMemory
from penstock.engine._stats import BadSample, Counters
from penstock.engine.workers._transport import MAX_PACKET_BYTES, RemoteError, Shipment
from penstock.errors import PenstockError

_MAX_DESCRIPTORS = 8
_SEND_BUFFER_BYTES = 32 << 10
"""Of a worker process: some packets, because the system limits the descriptors that are on their way."""
_REFUSED_S, _RETRY_S = 60.0, 0.01


class Run(NamedTuple):
    """To a reader: start to read at a position of an epoch, into shared memory whose descriptor accompanies this.

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
    reader: int
    """Its number among those of the loader, each of which has a share of the rows."""
    memory: int
    """The number of the shared memory."""


class Release(NamedTuple):
    """To a reader: some spans are built, so that their rows can be freed; those below `limit` can be built next."""

    run: int
    numbers: Sequence[int]
    limit: int


class Pause(NamedTuple):
    """To a reader: start no requests until the next `Resume`."""

    run: int


class Resume(NamedTuple):
    """To a reader: read, at most up to the end of the epoch after this one."""

    run: int
    epoch: int


class Stop(NamedTuple):
    """To a reader: end a run."""

    run: int


class Published(NamedTuple):
    """From a reader: its rows of a span are in the window, or cannot be because of an error."""

    run: int
    number: int
    memory: int
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
    places: Sequence[tuple[int, int]]
    """Start and size there of the task of each reader."""
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
    """To the template: fork a builder; its channel, and memory for decoded images if there is some, accompany this."""


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
        if len(packet) > MAX_PACKET_BYTES:
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
            self._socket, MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
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

    def has_message(self, seconds: float) -> bool:
        """Whether a message comes within a time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        self._socket.close()
