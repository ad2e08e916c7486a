"""Blobs: one large value in a separate object, followed by a checksum for each MiB."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.format._checksum import crc32c
from penstock.format._layout import blob_key, corrupt_error
from penstock.types import Buffer, ByteRange

BLOB_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A reference to a blob, as stored in a page."""

    id: str
    length: int
    """Bytes of the value; the checksums follow it, as little-endian uint32."""
    crc: int
    """Checksum of the checksums."""

    @property
    def key(self) -> str:
        return blob_key(self.id)

    @property
    def checksums_range(self) -> ByteRange:
        return ByteRange(self.length, self.length + 4 * -(-self.length // BLOB_BLOCK_BYTES))

    def checksums(self, data: Buffer, where: str) -> npt.NDArray[np.uint32]:
        """Verify and decode the checksums; raises `CorruptError`."""
        if crc32c(data) != self.crc:
            raise corrupt_error(where, "the checksum of its checksums does not match")
        return np.frombuffer(data, "<u4")


class BlobEncoder:
    """Encodes a value, given in chunks of any size, as a blob."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._checksums: list[int] = []
        self._block_crc, self._block_bytes, self._length = 0, 0, 0
        self.blob: Blob | None = None
        """The reference, after `encode` is exhausted."""

    def encode(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while len(view):
                part = view[: BLOB_BLOCK_BYTES - self._block_bytes]
                self._block_crc = crc32c(part, self._block_crc)
                self._block_bytes += len(part)
                self._length += len(part)
                if self._block_bytes == BLOB_BLOCK_BYTES:
                    self._close_block()
                view = view[len(part) :]
            yield chunk
        if self._block_bytes:
            self._close_block()
        tail = np.array(self._checksums, "<u4").tobytes()
        self.blob = Blob(self.id, self._length, crc32c(tail))
        yield tail

    def _close_block(self) -> None:
        self._checksums.append(self._block_crc)
        self._block_crc, self._block_bytes = 0, 0


def verify_blob_block(blob: Blob, block: int, data: Buffer, checksums: npt.NDArray[np.uint32], where: str) -> None:
    """Raise `CorruptError` if the checksum of a block does not match."""
    if crc32c(data) != int(checksums[block]):
        raise corrupt_error(where, f"the checksum of MiB {block} of {blob.length} bytes does not match")
