"""Read objects one after the other, ahead of whoever uses them and within a bound of memory, by threads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ahead:
    """How far somebody reads ahead."""

    at_once: int
    """Requests under way."""
    max_bytes: int
    """Of what has been asked for and not been used."""

    def allows(self, count: int, size: int) -> bool:
        """Whether one more may be asked for than so many, of so many bytes; one of any size always may."""
        return not count or (count < 4 * self.at_once and size < self.max_bytes)


def read_ahead(read: Callable[[int], T], sizes: Sequence[int], ahead: Ahead) -> Iterator[T]:
    """What `read` gives for each number in turn, for objects of these sizes; raises what it raises."""
    readers = _Readers(read, sizes, ahead)
    try:
        for _ in sizes:
            yield readers.next()
    finally:
        readers.stop()


class _Readers(Generic[T]):
    """Threads that take one object after the other.

    A small object takes less time than handing it to a thread and back does, so nobody is handed anything: a thread
    knows by itself what is next, and whoever needs an object waits only if it is not there.
    """

    def __init__(self, read: Callable[[int], T], sizes: Sequence[int], ahead: Ahead) -> None:
        self._read, self._sizes, self._ahead = read, sizes, ahead
        self._found: dict[int, tuple[T] | BaseException] = {}
        self._begun = self._given = self._bytes = 0
        """Objects that threads have begun, and that were given away; bytes of those in between."""
        self._wanted = -1
        self._lock = Lock()
        self._room, self._there = Condition(self._lock), Condition(self._lock)
        self._stopped = False
        for _ in range(min(ahead.at_once, len(sizes))):
            Thread(target=self._run, name="penstock-ahead", daemon=True).start()

    def next(self) -> T:
        with self._lock:
            number = self._wanted = self._given
            while number not in self._found:
                self._there.wait()
            found = self._found.pop(number)
            self._wanted = -1
            self._given += 1
            self._bytes -= self._sizes[number]
            self._room.notify()
        if isinstance(found, BaseException):
            raise found
        return found[0]

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._room.notify_all()

    def _run(self) -> None:
        while (number := self._begin()) is not None:
            found: tuple[T] | BaseException
            try:
                found = (self._read(number),)
            except BaseException as error:
                found = error
            with self._lock:
                self._found[number] = found
                if number == self._wanted:
                    self._there.notify()

    def _begin(self) -> int | None:
        """The number of an object to read; None when there are no more."""
        with self._lock:
            while not self._stopped and self._begun < len(self._sizes):
                if self._ahead.allows(self._begun - self._given, self._bytes):
                    self._begun += 1
                    self._bytes += self._sizes[self._begun - 1]
                    return self._begun - 1
                self._room.wait()
            return None
