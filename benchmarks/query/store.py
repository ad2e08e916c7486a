"""A store that writes down what is read from it, and when."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.storage import ObjectInfo, Store
from penstock.types import Buffer, ByteRange


@dataclass(frozen=True)
class Read:
    """One read of an object or a part of it."""

    key: str
    bytes: int
    start_s: float
    end_s: float


class RecordingStore(Store):
    """Forwards to another store; each read may take longer by a latency."""

    is_process_local = True

    def __init__(self, store: Store, latency_s: float = 0.0) -> None:
        self.store, self.uri, self.latency_s = store, store.uri, latency_s
        self.reads: list[Read] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Forget the reads so far."""
        with self._lock:
            self.reads.clear()

    def bytes_of(self, prefix: str) -> int:
        """Bytes read from objects whose keys begin so."""
        return sum(read.bytes for read in self.reads if read.key.startswith(prefix))

    def round_trips(self) -> int:
        """The most reads of which each began after the one before had ended."""
        count, last_end_s = 0, float("-inf")
        for read in sorted(self.reads, key=lambda read: read.end_s):
            if read.start_s >= last_end_s:
                count, last_end_s = count + 1, read.end_s
        return count

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        start = time.perf_counter()
        if self.latency_s:
            time.sleep(self.latency_s)
        data = self.store.get(key, byte_range=byte_range, etag=etag)
        with self._lock:
            self.reads.append(Read(key, data.nbytes, start, time.perf_counter()))
        return data

    def head(self, key: str) -> ObjectInfo:
        return self.store.head(key)

    def put(self, key: str, data: Buffer) -> None:
        self.store.put(key, data)

    def create(self, key: str, data: Buffer) -> None:
        self.store.create(key, data)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        self.store.put_stream(key, chunks)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.store.delete(keys)
