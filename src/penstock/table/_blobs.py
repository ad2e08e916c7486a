"""Blobs: write one from chunks, read one like a file."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import BLOB_BLOCK, Blob, BlobEncoder, new_id, verify_block
from penstock.format.kinds import Place
from penstock.storage import Store, run_all
from penstock.types import Buffer, ByteRange, cached_property

_READ_BLOCKS = 8
_READERS = 8


def write_blob(store: Store, chunks: Iterable[Buffer]) -> Blob:
    """Store one value as an object of its own."""
    encoder = BlobEncoder(new_id())
    store.put_stream(f"blobs/{encoder.id}", encoder.encode(chunks))
    assert encoder.blob is not None
    return encoder.blob


def read_blob(store: Store, blob: Blob) -> bytes:
    """A whole blob, verified."""
    return BlobReader(store, blob).readall()


class RangeFile(io.RawIOBase):
    """Bytes in a store as a file: seek anywhere, and only what is read is fetched."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length, self._position = length, 0

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}.get(whence)
        if base is None or base + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}: 0 is the start, 1 here and 2 the end")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._length)
        start = min(self._position, end)
        count = end - start
        if count:
            self._read(ByteRange(start, end), view)
            self._position = end
        return count

    def readall(self) -> bytes:
        self._check_open()
        data = bytearray(max(0, self._length - self._position))
        self.readinto(data)
        return bytes(data)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class LinkReader(RangeFile):
    """A linked value as a file."""

    def __init__(self, store: Store, place: Place) -> None:
        super().__init__(place.length)
        self._store, self._place = store, place

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        at = ByteRange(self._place.offset + wanted.start, self._place.offset + wanted.end)
        out[: wanted.length] = self._store.get(self._place.path, byte_range=at, etag=self._place.etag)


class BlobReader(RangeFile):
    """A blob as a file; every MiB is verified before any of it is given out."""

    def __init__(self, store: Store, blob: Blob) -> None:
        super().__init__(blob.length)
        self._store, self._blob = store, blob
        self._block, self._block_data = -1, memoryview(b"")
        """The MiB that was read last: the next read is likely to want more of it."""

    @property
    def _where(self) -> str:
        return f"{self._store.uri}/{self._blob.key}"

    @cached_property
    def _checksums(self) -> npt.NDArray[np.uint32]:
        at = self._blob.checksums_range
        return self._blob.checksums(self._store.get(self._blob.key, byte_range=at), self._where)

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        step = _READ_BLOCKS * BLOB_BLOCK
        first = wanted.start // BLOB_BLOCK * BLOB_BLOCK
        if first == self._block * BLOB_BLOCK:
            kept = self._block_data[wanted.start - first : wanted.end - first]
            out[: len(kept)] = kept
            if len(kept) == wanted.length:
                return
            wanted, out, first = ByteRange(wanted.start + len(kept), wanted.end), out[len(kept) :], first + BLOB_BLOCK
        last = min(-(-wanted.end // BLOB_BLOCK) * BLOB_BLOCK, self._blob.length)
        checksums = self._checksums

        def fetch(start: int) -> None:
            end = min(start + step, last)
            data = self._store.get(self._blob.key, byte_range=ByteRange(start, end))
            for at in range(0, len(data), BLOB_BLOCK):
                block = (start + at) // BLOB_BLOCK
                verify_block(self._blob, block, data[at : at + BLOB_BLOCK], checksums, self._where)
            if end == last:
                self._block, self._block_data = block, memoryview(bytes(data[at:]))
            inner = ByteRange(max(start, wanted.start), min(end, wanted.end))
            out[inner.start - wanted.start : inner.end - wanted.start] = data[inner.start - start : inner.end - start]

        run_all(fetch, range(first, last, step), max_workers=_READERS)


def as_blob(reference: Mapping[str, Any]) -> Blob:
    """A reference as a page holds it."""
    return Blob(reference["id"], reference["length"], reference["crc"])
