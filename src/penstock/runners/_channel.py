"""Messages between processes, with descriptors of shared memory; for Linux."""

import errno
import os
import pickle
import select
import socket
import threading
import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.device import SharedMemory
from penstock.errors import PenstockError

MAX_PACKET_BYTES = 4 << 10
"""Larger messages and values are passed in shared memory; smaller ones are cheaper to copy."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(8 * array("i").itemsize)
_SEND_BUFFER_BYTES = 32 << 10
"""Of a worker process: some packets, because the system limits the descriptors that are on their way."""
_REFUSED_S, _RETRY_S = 60.0, 0.01
_CLOSE_ON_EXEC, _TRUNCATED = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0)), int(socket.MSG_CTRUNC)
"""As integers: an operation on an `IntFlag` takes a microsecond."""

Kinds = Sequence[type[tuple[Any, ...]]]
"""Classes of messages, which are named tuples."""


class Channel:
    """One end of the connection between a process and its worker; raises `OSError` or `EOFError` at its end.

    A message is one packet of at most a page: whatever is larger lies in shared memory whose descriptor accompanies it.
    So no value fills the buffer of a socket, and a process that relays a message copies no value. Any thread may send,
    one receives.
    """

    def __init__(self, descriptor: int, kinds: Kinds) -> None:
        """Takes over the descriptor of one end of `pair`; both ends know the same `kinds` of messages.

        Others arrive too, but a class takes longer to pickle than all the rest of a message.
        """
        self._socket, self._lock, self.kinds = socket.socket(fileno=descriptor), threading.Lock(), kinds
        self._numbers = {kind: number for number, kind in enumerate(kinds)}

    @classmethod
    def pair(cls, kinds: Kinds) -> tuple["Channel", socket.socket]:
        """The end of this process, and the socket of a worker process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        return cls(ours.detach(), kinds), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors."""
        number, memory = self._numbers.get(type(message)), None
        fields = message if number is None else tuple(message)
        packet = pickle.dumps((number, fields, len(descriptors)), 5)
        if len(packet) > MAX_PACKET_BYTES:
            memory = shared(packet)
            packet, descriptors = b"0", [memory.fd, *descriptors]
        with self._lock:
            self._send_packet(packet, descriptors)

    def _send_packet(self, packet: bytes, descriptors: Sequence[int]) -> None:
        gives_up = time.monotonic() + _REFUSED_S
        while True:
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors)
                else:
                    self._socket.send(packet)
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
            number, fields, count = pickle.loads(SharedMemory(descriptors.pop(0)).bytes.data)
        else:
            number, fields, count = pickle.loads(packet)
        assert len(descriptors) == count
        return fields if number is None else tuple.__new__(self.kinds[number], fields), descriptors

    def _receive_packet(self) -> tuple[bytes, list[int]]:
        packet, ancillary, flags, _ = self._socket.recvmsg(MAX_PACKET_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        descriptors = array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) // descriptors.itemsize * descriptors.itemsize])
        if flags & _TRUNCATED:
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


def shared(data: bytes) -> SharedMemory:
    """New shared memory with some bytes."""
    memory = SharedMemory.create(len(data))
    memory.bytes[: len(data)] = np.frombuffer(data, np.uint8)
    return memory
