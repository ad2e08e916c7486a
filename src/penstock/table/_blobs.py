"""Blobs: large values in objects of their own, written from chunks and read like files."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import BLOB_BLOCK_BYTES, Blob, BlobEncoder, new_id, verify_blob_block
from penstock.storage import Store, thread_map
from penstock.types import Buffer, ByteRange, cached_property

_READ_BLOCKS = 8
_READERS = 8


def write_blob(store: Store, chunks: Iterable[Buffer]) -> Blob:
    """Store one value as a blob."""
    encoder = BlobEncoder(new_id())
    store.put_stream(f"blobs/{encoder.id}", encoder.encode(chunks))
    assert encoder.blob is not None
    return encoder.blob


def read_blob(store: Store, blob: Blob) -> bytes:
    """A whole blob, verified."""
    return BlobReader(store, blob).readall()


class RangeFile(io.RawIOBase):
    """Bytes in a store as a seekable file that fetches only the ranges it reads; subclasses implement `_read`."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length, self._position = length, 0

    def _read(self, byte_range: ByteRange, out: memoryview) -> None:
        """Fill the beginning of `out` with a non-empty range."""
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
            raise ValueError(f"cannot seek to {offset} from {whence}: whence is 0 (start), 1 (current) or 2 (end)")
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


class BlobReader(RangeFile):
    """A blob as a file; each block of 1 MiB is verified before it is returned, or `CorruptError` is raised."""

    def __init__(self, store: Store, blob: Blob) -> None:
        super().__init__(blob.length)
        self._store, self._blob = store, blob
        self._block, self._block_data = -1, memoryview(b"")
        """The last block read, cached because the next read probably continues in it."""

    @property
    def _where(self) -> str:
        return f"{self._store.uri}/{self._blob.key}"

    @cached_property
    def _checksums(self) -> npt.NDArray[np.uint32]:
        at = self._blob.checksums_range
        return self._blob.checksums(self._store.get(self._blob.key, byte_range=at), self._where)

    def readall(self) -> bytes:
        _ = self._checksums  # fails if the blob is shorter than its reference says, before memory is allocated for it
        return super().readall()

    def _read(self, byte_range: ByteRange, out: memoryview) -> None:
        step = _READ_BLOCKS * BLOB_BLOCK_BYTES
        first = byte_range.start // BLOB_BLOCK_BYTES * BLOB_BLOCK_BYTES
        if first == self._block * BLOB_BLOCK_BYTES:
            cached = self._block_data[byte_range.start - first : byte_range.end - first]
            out[: len(cached)] = cached
            if len(cached) == byte_range.length:
                return
            byte_range = ByteRange(byte_range.start + len(cached), byte_range.end)
            out, first = out[len(cached) :], first + BLOB_BLOCK_BYTES
        last = min(-(-byte_range.end // BLOB_BLOCK_BYTES) * BLOB_BLOCK_BYTES, self._blob.length)
        checksums = self._checksums

        def fetch(start: int) -> None:
            end = min(start + step, last)
            data = self._store.get(self._blob.key, byte_range=ByteRange(start, end))
            for at in range(0, len(data), BLOB_BLOCK_BYTES):
                block = (start + at) // BLOB_BLOCK_BYTES
                verify_blob_block(self._blob, block, data[at : at + BLOB_BLOCK_BYTES], checksums, self._where)
            if end == last:
                self._block, self._block_data = block, memoryview(bytes(data[at:]))
            inner = ByteRange(max(start, byte_range.start), min(end, byte_range.end))
            at = inner.start - byte_range.start
            out[at : at + inner.length] = data[inner.start - start : inner.end - start]

        thread_map(fetch, range(first, last, step), max_workers=_READERS)


def decode_reference(reference: Mapping[str, Any]) -> Blob:
    """The blob that a reference in a page points to."""
    return Blob(reference["id"], reference["length"], reference["crc"])
