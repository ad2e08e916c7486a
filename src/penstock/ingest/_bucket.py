"""Read the objects of a source: many at once, in order, in bounded memory; or point at them and read nothing."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress
from threading import Lock
from typing import Any, BinaryIO

from penstock.errors import NotFoundError, SourceChanged
from penstock.format.kinds import Link
from penstock.storage import Ahead, ObjectInfo, Store
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
            raise self._gone(file) from error
        self.meter.add(len(data))
        return data

    def each(
        self, files: Sequence[ObjectInfo], only: Callable[[ObjectInfo], bool] = lambda _: True
    ) -> Iterator[tuple[ObjectInfo, memoryview | SourceChanged]]:
        """Whole objects in order, read ahead; an object that cannot be read comes as what went wrong with it.

        Those that `only` does not name, and all of them where values are links, come unread and empty.
        """
        if self.link:
            yield from ((file, memoryview(b"")) for file in files)
            return
        chosen = [only(file) for file in files]
        found = self.store.get_each(list(compress(files, chosen)), Ahead(self.readers, _AHEAD_BYTES))
        for file, read in zip(files, chosen, strict=True):
            data = next(found) if read else memoryview(b"")
            if isinstance(data, memoryview):
                self.meter.add(len(data))
            yield file, self._gone(file) if isinstance(data, NotFoundError) else data

    def _gone(self, file: ObjectInfo) -> SourceChanged:
        return SourceChanged(f"{self.uri(file.key)} is gone since it was listed; run it again")

    def open(self, file: ObjectInfo) -> BinaryIO:
        """An object as a file that fetches what is read, a few megabytes at a time and the next ones ahead."""
        return io.BufferedReader(_Ranged(self, file), _STEP_BYTES)

    def value(self, file: ObjectInfo, data: Any, offset: int = 0, length: int | None = None) -> Any:
        """What a row holds: the data, or a link to where it is."""
        if not self.link:
            return data
        size = file.size - offset if length is None else length
        return Link(self.uri(file.key), offset=offset, length=size, etag=file.etag)


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
