"""Ranges of objects over plain HTTP, read from the socket straight to where they are wanted.

obstore hands over memory of its own: a byte is copied twice on its way there, and once more to its place. Where a fast
network brings it without TLS, that is most of what it costs. So this knows one thing and no more: a range of an object,
answered by a 206 of the right length. For everything else it says so, and the caller asks obstore, who knows the rest.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.storage._buffers import MAX_BUFFERS
from penstock.storage._http_words import (
    HEAD_END,
    MAX_HEAD_BYTES,
    NOT_KNOWN,
    PARTIAL_CONTENT,
    SERVER_ERROR,
    Head,
    Question,
    ask_for,
    read_head,
)
from penstock.types import ByteRange

_MOST_SURPRISES = 3
CONNECT_S = 5.0
_HEAD_BYTES = 2 << 10


class PlainHttp:
    """Reads over connections that are kept and used again; for any number of threads."""

    def __init__(self, address: Callable[[str], str | None], *, timeout_s: float) -> None:
        """`address` gives the URL of an object, signed if need be; None if it cannot."""
        self._address, self.timeout_s = address, timeout_s
        self._idle: deque[_Connection] = deque()
        self._surprises = 0

    @property
    def serves(self) -> bool:
        """Whether it is worth asking: not a store that keeps on answering in ways that we do not know."""
        return self._surprises < _MOST_SURPRISES

    def read(
        self,
        path: str,
        start: int,
        buffers: Sequence[memoryview],
        *,
        etag: str | None = None,
        late_s: float | None = None,
    ) -> bool:
        """Fill buffers with an object's bytes from `start` on; False if that did not work, for whatever reason.

        With `etag`, only of an object that has it. Raises `TimeoutError` if it takes longer than `late_s`.
        """
        wanted = ByteRange(start, start + sum(map(len, buffers)))
        question = self.ask_for(path, wanted, etag)
        if question is None:
            return False
        ends = time.monotonic() + (self.timeout_s if late_s is None else late_s)
        try:
            return self.count(self._get(question, wanted, buffers, ends))
        except TimeoutError:
            if late_s is None:
                return False
            raise
        except OSError:
            return False

    def ask_for(self, path: str, wanted: ByteRange, etag: str | None) -> Question | None:
        """How to ask for a range of an object; None if that cannot be said."""
        address = self._address(path)
        if address is None or not address.startswith("http://"):
            self._surprises += 1
            return None
        return ask_for(address, wanted, etag)

    def count(self, status: int) -> bool:
        """Whether an answer has what was asked for; those that have not are counted."""
        there = status == PARTIAL_CONTENT
        self._surprises = 0 if there else self._surprises + (status < SERVER_ERROR)
        return there

    def _get(self, question: Question, wanted: ByteRange, buffers: Sequence[memoryview], ends: float) -> int:
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = _Connection(question.whom, ends), True
            try:
                status = connection.get(question.words, wanted, buffers, ends)
            except ConnectionError:
                if fresh:
                    raise
                continue  # the store had closed it, as it may while nobody uses it
            if connection.usable:
                self._idle.append(connection)
            return status


class _Connection:
    """One connection, `usable` again when an answer has been read to its end; closed when it is dropped."""

    def __init__(self, whom: tuple[str, int], ends: float) -> None:
        self._socket = socket.create_connection(whom, min(CONNECT_S, _left_s(ends)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)  # Python would ask before each read whether there is something; see `_limit`
        self._hundredths = 0
        """Of a second, that the system waits at most."""
        self.usable = True

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def get(self, words: bytes, wanted: ByteRange, buffers: Sequence[memoryview], ends: float) -> int:
        """Ask, and fill the buffers if the answer is what was asked for; its status, or that it is not known."""
        self.usable = False
        self._limit(ends)
        try:
            self._socket.sendall(words)
            head, body = self._head(wanted)
            if head.status == PARTIAL_CONTENT:
                self._fill(buffers, body, ends)
                self.usable = not head.closes
            return head.status
        except BlockingIOError:  # how the system says that time is over
            raise TimeoutError("the store did not answer in time") from None

    def _limit(self, ends: float) -> None:
        """Let the system end every wait, however many bytes are waited for in one call."""
        hundredths = max(1, round(100 * _left_s(ends)))
        if hundredths == self._hundredths:
            return
        self._hundredths = hundredths
        limit = struct.pack("@ll", hundredths // 100, hundredths % 100 * 10_000)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def _head(self, wanted: ByteRange) -> tuple[Head, bytes]:
        """What the answer says, and what came of its body with that."""
        got = b""
        while len(got) < MAX_HEAD_BYTES:
            more = self._socket.recv(_HEAD_BYTES)
            got += more
            said, separator, body = got.partition(HEAD_END)
            if separator:
                return read_head(said, wanted), body
            if not more:
                raise ConnectionError("the connection was closed before an answer")
        return Head(NOT_KNOWN, None, closes=True), b""

    def _fill(self, buffers: Sequence[memoryview], body: bytes, ends: float) -> None:
        """Fill the buffers with a body of which some has come already."""
        missing = _after(len(body), buffers)
        for buffer in buffers[: len(buffers) - len(missing) + 1]:
            first = body[: len(buffer)]
            buffer[: len(first)] = first
            body = body[len(first) :]
        while missing:
            count = self._socket.recvmsg_into(missing[:MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
            if not count:
                raise ConnectionError("the connection was closed in the middle of an answer")
            missing = _after(count, missing)
            if missing and time.monotonic() > ends:
                raise TimeoutError("the answer did not come to its end in time")


def _after(count: int, buffers: Sequence[memoryview]) -> list[memoryview]:
    """What is left of buffers after their first bytes."""
    for number, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[number + 1 :]]
        count -= len(buffer)
    return []


def _left_s(ends: float) -> float:
    return max(0.001, ends - time.monotonic())
