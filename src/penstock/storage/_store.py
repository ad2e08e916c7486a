"""The contract every store keeps: keys to bytes, and one atomic primitive, `create`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from penstock.errors import NotFoundError, SourceChanged
from penstock.storage._ahead import Ahead, read_ahead
from penstock.storage._buffers import fill
from penstock.types import Buffer, ByteRange

Gone: TypeAlias = NotFoundError | SourceChanged
"""How a store says that an object is no longer what it was."""


class ObjectInfo(NamedTuple):
    """What a store says about an object without reading it."""

    key: str
    size: int
    etag: str | None
    modified_s: float
    """Seconds since the epoch by the store's clock."""


class Store(ABC):
    """Objects under one root, addressed by relative keys with forward slashes.

    The contract; if a store disagrees with this list, the store is wrong (`penstock.testing.StoreTests` is its exam):

    - An object is seen whole or not at all; a read after a write that returned sees that write.
    - `create` lets exactly one of any number of racing writers win; the others get `AlreadyExistsError`.
      A writer that gets any other error does not know whether it won, and must read back.
    - `create` and `put` return only when the bytes are as durable as the store can make them.
    - A missing object is `NotFoundError` and nothing else is; a store that cannot be reached, or that refuses, is a
      `StorageError`; and no call waits longer than its retry policy's deadline.
    - Every method may be called from any thread. A store can be pickled and opens anew where it is unpickled.
    """

    uri: str
    """Where this store is, as the user would write it; never contains a secret."""

    fan_out: int = 16
    """How many small requests at once make sense: many where each waits for a network, one where none waits."""

    straight: bool = False
    """Whether `read_into` fills buffers without a copy in between."""

    retries: int = 0
    """How many requests were repeated after a failure, so far."""

    @abstractmethod
    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read an object or a part of it.

        Fewer bytes than asked for, because the object is shorter, is a `CorruptError` that names both lengths.
        With `etag`, an object that has another one is `SourceChanged`.
        """

    def get_each(self, objects: Sequence[ObjectInfo], ahead: Ahead) -> Iterator[memoryview | Gone]:
        """Whole objects in order, read ahead; one that is not what was listed, or not there, comes as that error."""
        return read_ahead(lambda number: self._get_listed(objects[number]), [it.size for it in objects], ahead)

    def _get_listed(self, listed: ObjectInfo) -> memoryview | Gone:
        try:
            return self.get(listed.key, etag=listed.etag)
        except (NotFoundError, SourceChanged) as error:
            return error

    def get_parts(self, key: str, parts: Sequence[ByteRange]) -> Iterator[memoryview]:
        """Read neighbouring parts of an object, in rising order, as one request; each is usable as soon as it comes."""
        whole = self.get(key, byte_range=ByteRange(parts[0].start, parts[-1].end))
        for part in parts:
            yield whole[part.start - parts[0].start : part.end - parts[0].start]

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview], *, late_s: float | None = None) -> None:
        """Fill one buffer after the other with the bytes from `start` on.

        With `late_s` an answer that takes longer may be given up, with a `StorageTimeout`: asked again, it may come at
        once. Then nothing will be written to the buffers by the first request.
        """
        del late_s  # a request in foreign hands cannot be given up
        fill(buffers, self.get(key, byte_range=ByteRange(start, start + sum(map(len, buffers)))))

    def read_scattered(self, parts: Sequence[tuple[str, int, memoryview]]) -> None:
        """Fill each buffer with the bytes of an object from some place on; for many small parts of many objects."""
        for key, start, buffer in parts:
            self.read_into(key, start, [buffer])

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Describe an object."""

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Write an object, replacing what is there."""

    @abstractmethod
    def create(self, key: str, data: Buffer) -> None:
        """Write an object only if the key is free."""

    @abstractmethod
    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write one object from chunks, holding only a few of them in memory; nothing is kept if the iterable fails."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the objects whose keys start with `prefix` (any string, not only a folder), in key order."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; a key that is not there is no error."""
