"""The contract of every store: keys to bytes, and one atomic primitive, `create`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from penstock.errors import NotFoundError, SourceChangedError
from penstock.storage._buffers import fill
from penstock.storage._prefetch import Prefetch, read_ahead
from penstock.types import Buffer, ByteRange

Gone: TypeAlias = NotFoundError | SourceChangedError
"""The errors for an object that is missing or no longer the listed one."""


class ObjectInfo(NamedTuple):
    """Metadata of an object."""

    key: str
    size: int
    etag: str | None
    modified_s: float
    """Seconds since the epoch by the store's clock."""


class Store(ABC):
    """Objects under one root, addressed by relative keys with forward slashes.

    The contract; if a store disagrees with this list, the store is wrong (`penstock.testing.StoreTests` tests it):

    - Readers see an object whole or not at all; a read after a write that returned sees that write.
    - Of any number of racing `create` calls exactly one succeeds; the others raise `AlreadyExistsError`.
      After any other error the outcome is unknown, and the caller must read back.
    - `create` and `put` return only when the bytes are as durable as the store can make them.
    - A missing object raises `NotFoundError`, and nothing else does; a store that cannot be reached, or that refuses,
      raises a `StorageError`; and no call takes longer than its retry policy's deadline.
    - Every method is thread-safe. A store can be pickled and is opened anew where it is unpickled.
    """

    uri: str
    """The store's address, as the user would write it; never contains a secret."""

    is_local: bool = False
    """Whether reads do not wait for a network: one thread is enough, and `read_into` fills buffers without a copy."""

    is_process_local: bool = False
    """Whether other processes cannot open it, or would open another one."""

    retries: int = 0
    """Requests repeated after a failure, so far."""

    @abstractmethod
    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read an object or a range of it.

        Raises `CorruptError`, which names both lengths, if the object ends before the range does, and
        `SourceChangedError` if the object does not have the given `etag`.
        """

    def get_many(self, objects: Sequence[ObjectInfo], prefetch: Prefetch) -> Iterator[memoryview | Gone]:
        """Read whole objects in order, prefetching; yields the error of an object that is missing or has changed."""
        return read_ahead(self._get_listed, objects, prefetch=prefetch, size=lambda listed: listed.size)

    def _get_listed(self, listed: ObjectInfo) -> memoryview | Gone:
        try:
            return self.get(listed.key, etag=listed.etag)
        except (NotFoundError, SourceChangedError) as error:
            return error

    def get_parts(self, key: str, parts: Sequence[ByteRange]) -> Iterator[memoryview]:
        """Read ranges of an object that are in ascending order, and the gaps between them, with one request."""
        whole = self.get(key, byte_range=ByteRange(parts[0].start, parts[-1].end))
        for part in parts:
            yield whole[part.start - parts[0].start : part.end - parts[0].start]

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill consecutive buffers with the bytes of an object from offset `start` on."""
        fill(buffers, self.get(key, byte_range=ByteRange(start, start + sum(map(len, buffers)))))

    def read_scattered(self, parts: Sequence[tuple[str, int, memoryview]]) -> None:
        """Fill each buffer from a key and an offset; for many small ranges of many objects."""
        for key, start, buffer in parts:
            self.read_into(key, start, [buffer])

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata."""

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Write an object, replacing an existing one."""

    @abstractmethod
    def create(self, key: str, data: Buffer) -> None:
        """Write an object only if the key does not exist; raises `AlreadyExistsError` if it does."""

    @abstractmethod
    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write one object from chunks, with only a few of them in memory; writes nothing if the iterable fails."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys start with `prefix` (any string, not only a folder), in key order."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing keys are ignored."""

    def close(self) -> None:  # noqa: B027
        """Close what the store holds open; it is opened again when it is needed, and closed with the last reference."""
