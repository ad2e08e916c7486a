"""Whole small objects over plain HTTP, many at once, by the one thread that uses them.

It asks for as many as it may and waits for all answers together. That costs a fraction of what a thread for each
request, ours or obstore's, spends on being woken.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EINPROGRESS
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.storage._ahead import Ahead
from penstock.storage._buffers import new_buffer
from penstock.storage._http_words import HEAD_END, MAX_HEAD_BYTES, NOT_KNOWN, PARTIAL_CONTENT, Head, Question, read_head
from penstock.storage._plain_http import CONNECT_S, PlainHttp
from penstock.types import ByteRange

T = TypeVar("T")

_SMALL_BYTES = 128 << 10
"""So much of an answer the system keeps while nobody reads; more would not come before somebody does."""
_READ_BYTES = 64 << 10
_LOOK_S = 1.0
_NOTHING = memoryview(b"")


class Whole(NamedTuple):
    """An object that is wanted, as it was listed."""

    path: str
    size: int
    etag: str | None


class PlainEach:
    """Reads over connections that are kept and used again; for any number of threads."""

    def __init__(self, plain: PlainHttp) -> None:
        self._plain = plain
        self._kept: deque[_Connection] = deque()

    def read(self, objects: Sequence[Whole], instead: Callable[[int], T], ahead: Ahead) -> Iterator[memoryview | T]:
        """Objects in order; those that are large, or do not come, by what `instead` does with their number."""
        crowd = _Crowd(self._plain, self._kept, objects, instead, ahead)
        try:
            for _ in objects:
                yield crowd.next()
        finally:
            crowd.close()


class _Crowd(Generic[T]):
    """Requests under way, and what has come and is not wanted yet."""

    def __init__(
        self,
        plain: PlainHttp,
        kept: "deque[_Connection]",
        objects: Sequence[Whole],
        instead: Callable[[int], T],
        ahead: Ahead,
    ) -> None:
        self._plain, self._kept, self._objects, self._instead, self._ahead = plain, kept, objects, instead, ahead
        self._selector = DefaultSelector()
        self._peer: tuple[int, Any] | None = None
        """Kind and address of the server, as the first connection found them."""
        self._reached = True
        """Whether there is a server, as far as we know."""
        self._idle: list[_Connection] = []
        self._busy: dict[_Connection, int] = {}
        """The numbers of the objects that connections bring."""
        self._found: dict[int, memoryview | Future[T]] = {}
        self._asked = self._given = self._bytes = 0
        """Objects that have been asked for, and that were given away; bytes of those in between."""
        self._looked_s = time.monotonic()
        self._pool = ThreadPoolExecutor(ahead.at_once, "penstock-instead")

    def next(self) -> memoryview | T:
        """The next object; waits for it if it has not come."""
        number = self._given
        self._ask()
        while number not in self._found:
            self._wait()
            self._ask()
        found = self._found.pop(number)
        self._given += 1
        self._bytes -= self._objects[number].size
        return found.result() if isinstance(found, Future) else found

    def close(self) -> None:
        self._selector.close()
        self._kept.extend(self._idle)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> None:
        """Ask for as many as may be under way."""
        while (
            self._asked < len(self._objects)
            and len(self._busy) < self._ahead.at_once
            and self._ahead.allows(self._asked - self._given, self._bytes)
        ):
            number = self._asked
            self._asked += 1
            self._bytes += self._objects[number].size
            self._begin(number)

    def _begin(self, number: int) -> None:
        path, size, etag = self._objects[number]
        plain = self._reached and self._plain.serves and 0 < size <= _SMALL_BYTES
        wanted = ByteRange(0, size)
        question = self._plain.ask_for(path, wanted, etag) if plain else None
        if question is None:
            self._ask_otherwise(number)
            return
        try:
            connection = self._idle.pop() if self._idle else self._connected(question)
        except OSError:  # which may have taken a while, and should not for each object
            self._reached = False
            self._ask_otherwise(number)
            return
        self._busy[connection] = number
        try:
            connection.ask(question.words, wanted)
        except OSError:
            self._drop(connection)

    def _connected(self, question: Question) -> "_Connection":
        """A connection of an earlier crowd, or a new one, that is waited for from now on."""
        try:
            connection = self._kept.pop()
        except IndexError:
            connection = _Connection(question.whom, self._peer)
            self._peer = self._peer or connection.peer
        self._selector.register(connection.socket, EVENT_READ if connection.is_open else EVENT_WRITE, connection)
        return connection

    def _wait(self) -> None:
        """Take what has come, or comes soon."""
        for key, _ in self._selector.select(_LOOK_S):
            connection: _Connection = key.data
            try:
                if connection not in self._busy:
                    raise ConnectionError("the store closes it, or says something that nobody asked for")
                if not connection.is_open:
                    connection.open()
                    self._selector.modify(connection.socket, EVENT_READ, connection)
                elif connection.receive():
                    self._take(connection)
            except OSError:
                self._drop(connection)
        now = time.monotonic()
        if now > self._looked_s + _LOOK_S:
            self._looked_s = now
            for late in [each for each in self._busy if now > each.asked_s + self._plain.timeout_s]:
                self._drop(late)

    def _take(self, connection: "_Connection") -> None:
        """Keep what a connection brought; if that is not the object, ask for it otherwise."""
        number = self._busy.pop(connection)
        if self._plain.count(connection.status):
            self._found[number] = connection.give_body()
        else:
            self._ask_otherwise(number)
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._selector.unregister(connection.socket)

    def _drop(self, connection: "_Connection") -> None:
        """Have done with a connection that failed; what was to come by it is asked for otherwise."""
        self._selector.unregister(connection.socket)
        if not connection.is_open:
            self._peer = None
        if (number := self._busy.pop(connection, None)) is not None:
            self._ask_otherwise(number)
        else:
            self._idle.remove(connection)

    def _ask_otherwise(self, number: int) -> None:
        self._found[number] = self._pool.submit(self._instead, number)


class _Connection:
    """A connection on which nobody waits, the first to a server aside; closed when it is dropped."""

    def __init__(self, whom: tuple[str, int], peer: tuple[int, Any] | None) -> None:
        self.is_open = peer is None
        """Whether questions can be sent."""
        if peer is None:
            self.socket = socket.create_connection(whom, CONNECT_S)
        else:
            self.socket = socket.socket(peer[0])
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if peer is not None and (failure := self.socket.connect_ex(peer[1])) not in (0, EINPROGRESS):
            raise OSError(failure, "cannot connect")
        self.asked_s = 0.0
        self.status = NOT_KNOWN
        """Of the answer, which is known to be the whole object if it is a partial content."""
        self._body = self._missing = _NOTHING
        self._words = self._said = b""
        self._wanted, self._closes = ByteRange(0, 0), False

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()

    @property
    def peer(self) -> tuple[int, Any]:
        return self.socket.family, self.socket.getpeername()

    def ask(self, words: bytes, wanted: ByteRange) -> None:
        """Ask for all of an object, at once or as soon as that is possible."""
        self.asked_s = time.monotonic()
        self._words, self._wanted, self._said = words, wanted, b""
        self.status, self._body, self._missing = NOT_KNOWN, _NOTHING, _NOTHING
        if self.is_open:
            self._send()

    def open(self) -> None:
        """Say what could not be said before the server answered."""
        if failure := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, "cannot connect")
        self.is_open = True
        self._send()

    def receive(self) -> bool:
        """Take what has come; whether the answer is there, as far as it is of interest."""
        if self._missing:
            count = self.socket.recv_into(self._missing)
            if not count:
                raise ConnectionError("the connection was closed in the middle of an answer")
            self._missing = self._missing[count:]
        else:
            more = self.socket.recv(_READ_BYTES)
            if not more:
                raise ConnectionError("the connection was closed before an answer")
            self._said += more
            end = self._said.find(HEAD_END)
            if end < 0 and len(self._said) < MAX_HEAD_BYTES:
                return False
            self._begin(read_head(self._said[:end], self._wanted), memoryview(self._said)[end + len(HEAD_END) :])
        if self._missing:
            return False
        self.is_open = not self._closes
        return True

    def give_body(self) -> memoryview:
        """The object, which is no longer held here: an idle connection should cost no memory."""
        body, self._body, self._missing = self._body, _NOTHING, _NOTHING
        return body

    def _begin(self, head: Head, body: memoryview) -> None:
        """Take the head of an answer, and what came of its body with it."""
        self._said, self._closes = b"", head.closes
        size = self._wanted.end
        if head.status != PARTIAL_CONTENT or head.object_bytes != size or len(body) > size:
            self.status = NOT_KNOWN if head.status == PARTIAL_CONTENT else head.status
            self._closes = True  # who knows where the answer ends
            return
        self.status = PARTIAL_CONTENT
        if len(body) == size:
            self._body = body
        else:
            self._body = new_buffer(size)
            self._body[: len(body)] = body
            self._missing = self._body[len(body) :]

    def _send(self) -> None:
        if self.socket.send(self._words) < len(self._words):
            raise OSError("the connection takes no more")
