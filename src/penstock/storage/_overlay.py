"""A store with some objects in memory on top of another store."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from penstock.errors import NotFoundError
from penstock.storage import _errors
from penstock.storage._keys import object_uri
from penstock.storage._memory import MemoryStore, open_portable
from penstock.storage._prefetch import Prefetch
from penstock.storage._store import Gone, ObjectInfo, Store
from penstock.types import Buffer, ByteRange


class OverlayStore(Store):
    """Another store, with some objects in memory: those shadow objects of the other store under the same keys.

    What is written or deleted under the prefixes `held` stays in memory, everything else goes to the other store. A
    pickled overlay carries its objects along, so other processes can open it wherever they can open the other store.
    """

    _base: Store
    _held: tuple[str, ...]

    def __init__(self, base: Store, held: Sequence[str], objects: Mapping[str, bytes] | None = None) -> None:
        if isinstance(base, OverlayStore):  # one level of memory, however often columns are added
            held, objects = (*base._held, *held), {**base._memory.objects(), **(objects or {})}
            base = base._base
        self._base, self._held = base, tuple(dict.fromkeys(held))
        self._memory: MemoryStore = open_portable(base.uri, objects or {})
        self.uri, self.is_local, self.is_process_local = base.uri, base.is_local, base.is_process_local

    def __reduce__(self) -> tuple[object, ...]:
        return OverlayStore, (self._base, self._held, self._memory.objects())

    @property
    def retries(self) -> int:  # type: ignore[override]
        """Requests of the other store that were repeated."""
        return self._base.retries

    @property
    def held_bytes(self) -> int:
        """Bytes of the objects in memory."""
        return sum(map(len, self._memory.objects().values()))

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read from memory, or from the other store."""
        return self._holder(key).get(key, byte_range=byte_range, etag=etag)

    def get_many(self, objects: Sequence[ObjectInfo], prefetch: Prefetch) -> Iterator[memoryview | Gone]:
        """Read whole objects in order; those of the other store are prefetched by it."""
        for store, group in groupby(objects, key=lambda listed: self._holder(listed.key)):
            yield from store.get_many(list(group), prefetch)

    def get_parts(self, key: str, parts: Sequence[ByteRange]) -> Iterator[memoryview]:
        """Read ranges from memory, or from the other store."""
        return self._holder(key).get_parts(key, parts)

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers from memory, or from the other store."""
        self._holder(key).read_into(key, start, buffers)

    def read_scattered(self, parts: Sequence[tuple[str, int, memoryview]]) -> None:
        """Fill the buffers of keys in memory, and those of the other store with one call."""
        below = []
        for part in parts:
            if self._memory.holds(part[0]):
                self._memory.read_into(part[0], part[1], [part[2]])
            else:
                below.append(part)
        if below:
            self._base.read_scattered(below)

    def head(self, key: str) -> ObjectInfo:
        """Metadata from memory, or from the other store."""
        return self._holder(key).head(key)

    def put(self, key: str, data: Buffer) -> None:
        """Write to memory below a held prefix, else to the other store."""
        self._target(key).put(key, data)

    def create(self, key: str, data: Buffer) -> None:
        """Create in memory below a held prefix, else in the other store."""
        target = self._target(key)
        if target is self._memory and self._exists_below(key):
            raise _errors.already_exists(object_uri(self.uri, key))
        target.create(key, data)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write to memory below a held prefix, else to the other store."""
        self._target(key).put_stream(key, chunks)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List both stores in key order."""
        last = None
        for item in heapq.merge(self._memory.list(prefix), self._base.list(prefix), key=lambda item: item.key):
            if item.key != last:  # of equal keys, the one in memory is first
                yield item
            last = item.key

    def delete(self, keys: Sequence[str]) -> None:
        """Delete from memory below a held prefix, else from the other store."""
        below = [key for key in keys if self._target(key) is self._base]
        self._memory.delete([key for key in keys if self._target(key) is self._memory])
        if below:
            self._base.delete(below)

    def close(self) -> None:
        """Close what the other store holds open."""
        self._base.close()

    def _holder(self, key: str) -> Store:
        return self._memory if self._memory.holds(key) else self._base

    def _target(self, key: str) -> Store:
        return self._memory if key.startswith(self._held) else self._base

    def _exists_below(self, key: str) -> bool:
        try:
            self._base.head(key)
        except NotFoundError:
            return False
        return True
