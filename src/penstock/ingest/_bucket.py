"""Read the objects of a source: many at once, in order, in bounded memory; or point at them and read nothing."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress
from threading import Condition, Lock, Thread
from typing import Any, BinaryIO

from penstock.errors import NotFoundError, SourceChanged
from penstock.format.kinds import Link
from penstock.storage import ObjectInfo, Store
from penstock.table import RangeFile
from penstock.types import ByteRange

_AHEAD_BYTES = 32 << 20
_READERS = 32
_STEP_BYTES = 4 << 20
MAX_VALUE_BYTES = 4 << 30
"""No single value may be larger; a file that says so is broken, or means harm."""


class Meter:
    """Counts bytes as they are read, for whoever watches; a copy in another process counts for itself."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["Meter"], tuple[()]]:
        return Meter, ()

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


@dataclass(frozen=True)
class Bucket:
    """A source's objects; can be pickled."""

    store: Store
    link: bool = False
    """Whether values are links to the source's bytes instead of copies of them."""
    readers: int = field(default=_READERS, compare=False)
    """Requests under way at once, for one iterator."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)

    def uri(self, key: str) -> str:
        """What a person calls an object."""
        return f"{self.store.uri.rstrip('/')}/{key}"

    def read(self, file: ObjectInfo, start: int = 0, length: int | None = None) -> memoryview:
        """An object or a part of it; one that is no longer what was listed is `SourceChanged`."""
        end = file.size if length is None else start + length
        if end == start:
            return memoryview(b"")
        try:
            whole = start == 0 and end == file.size
            data = self.store.get(file.key, byte_range=None if whole else ByteRange(start, end), etag=file.etag)
        except NotFoundError as error:
            raise SourceChanged(f"{self.uri(file.key)} is gone since it was listed; run it again") from error
        self.meter.add(len(data))
        return data

    def each(
        self, files: Sequence[ObjectInfo], only: Callable[[ObjectInfo], bool] = lambda _: True
    ) -> Iterator[tuple[ObjectInfo, memoryview | Exception]]:
        """Whole objects in order, read ahead; an object that cannot be read comes as what went wrong with it.

        Those that `only` does not name, and all of them where values are links, come unread and empty.
        """

        if self.link:
            yield from ((file, memoryview(b"")) for file in files)
            return
        chosen = [only(file) for file in files]
        ahead = _Ahead(self, list(compress(files, chosen)), self.readers)
        try:
            for file, read in zip(files, chosen, strict=True):
                yield file, ahead.next() if read else memoryview(b"")
        finally:
            ahead.stop()

    def open(self, file: ObjectInfo) -> BinaryIO:
        """An object as a file that fetches what is read, a few megabytes at a time and the next ones ahead."""
        return io.BufferedReader(_Ranged(self, file), _STEP_BYTES)

    def value(self, file: ObjectInfo, data: Any, offset: int = 0, length: int | None = None) -> Any:
        """What a row holds: the data, or a link to where it is."""
        if not self.link:
            return data
        size = file.size - offset if length is None else length
        return Link(self.uri(file.key), offset=offset, length=size, etag=file.etag)


class _Ahead:
    """Reads objects by threads that take one after the other, as far ahead as memory allows; gives them in order.

    A small object takes less time than handing it to a thread and back does, so nobody is handed anything: a thread
    knows by itself what is next, and whoever needs an object waits only if it is not there.
    """

    def __init__(self, bucket: Bucket, files: Sequence[ObjectInfo], readers: int) -> None:
        self._bucket, self._files = bucket, files
        self._most = 4 * readers
        self._found: dict[int, memoryview | BaseException] = {}
        self._taken = self._given = self._bytes = 0
        """Objects that threads have begun, and that were given away; bytes of those in between."""
        self._wanted = -1
        self._lock = Lock()
        self._room, self._there = Condition(self._lock), Condition(self._lock)
        self._stopped = False
        for _ in range(min(readers, len(files))):
            Thread(target=self._run, name="penstock-ingest", daemon=True).start()

    def next(self) -> memoryview | Exception:
        """The next object; raises what went wrong, but one that is gone or has changed is returned as that."""
        with self._lock:
            number = self._wanted = self._given
            while number not in self._found:
                self._there.wait()
            found = self._found.pop(number)
            self._wanted = -1
            self._given += 1
            self._bytes -= self._files[number].size
            self._room.notify()
        if isinstance(found, BaseException) and not isinstance(found, SourceChanged):
            raise found
        return found

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._room.notify_all()

    def _begin(self) -> int | None:
        """The number of an object to read; None when there are no more."""
        with self._lock:
            while not self._stopped and self._taken < len(self._files):
                ahead = self._taken - self._given
                if not ahead or (ahead < self._most and self._bytes < _AHEAD_BYTES):
                    self._taken += 1
                    self._bytes += self._files[self._taken - 1].size
                    return self._taken - 1
                self._room.wait()
            return None

    def _run(self) -> None:
        while (number := self._begin()) is not None:
            found: memoryview | BaseException
            try:
                found = self._bucket.read(self._files[number])
            except BaseException as error:
                found = error
            with self._lock:
                self._found[number] = found
                if number == self._wanted:
                    self._there.notify()


class _Ranged(RangeFile):
    """Reads in steps, of which the next is under way while one is used."""

    def __init__(self, bucket: Bucket, file: ObjectInfo) -> None:
        super().__init__(file.size)
        self._bucket, self._file = bucket, file
        self._pool = ThreadPoolExecutor(1, "penstock-ahead")
        self._steps: dict[int, Future[memoryview]] = {}

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        for step in range(wanted.start // _STEP_BYTES, -(-wanted.end // _STEP_BYTES)):
            follows = step - 1 in self._steps  # who jumps about is not read ahead for
            ours = self._ask(step)
            if follows and (step + 1) * _STEP_BYTES < self._file.size:
                self._ask(step + 1)
            first = step * _STEP_BYTES
            start = max(wanted.start, first)
            data = ours.result()[start - first : wanted.end - first]
            out[start - wanted.start : start - wanted.start + len(data)] = data
            self._steps = {number: future for number, future in self._steps.items() if step <= number <= step + 1}

    def _ask(self, step: int) -> Future[memoryview]:
        if step not in self._steps:
            start = step * _STEP_BYTES
            length = min(_STEP_BYTES, self._file.size - start)
            self._steps[step] = self._pool.submit(self._bucket.read, self._file, start, length)
        return self._steps[step]

    def close(self) -> None:
        if not self.closed:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()
