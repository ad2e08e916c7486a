"""Blobs: one huge value in an object of its own, with a checksum for every MiB behind it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.format._checksum import crc32c
from penstock.format._layout import blob_key, damaged
from penstock.types import Buffer, ByteRange

BLOB_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A reference to a blob, as a page holds it."""

    id: str
    length: int
    """Bytes of the value; the checksums follow, four bytes little-endian each."""
    crc: int
    """Checksum of those checksums."""

    @property
    def key(self) -> str:
        return blob_key(self.id)

    @property
    def checksums_range(self) -> ByteRange:
        return ByteRange(self.length, self.length + 4 * -(-self.length // BLOB_BLOCK))

    def checksums(self, data: Buffer, where: str) -> npt.NDArray[np.uint32]:
        """Verify and read the checksums."""
        if crc32c(data) != self.crc:
            raise damaged(where, "the checksum of its checksums does not match")
        return np.frombuffer(data, "<u4")


class BlobEncoder:
    """Turns the chunks of a value into the chunks of an object, whatever their sizes."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._checksums: list[int] = []
        self._open_crc, self._open_bytes, self._length = 0, 0, 0
        self.blob: Blob | None = None
        """The reference, once everything has been encoded."""

    def encode(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while len(view):
                part = view[: BLOB_BLOCK - self._open_bytes]
                self._open_crc = crc32c(part, self._open_crc)
                self._open_bytes += len(part)
                self._length += len(part)
                if self._open_bytes == BLOB_BLOCK:
                    self._close_block()
                view = view[len(part) :]
            yield chunk
        if self._open_bytes:
            self._close_block()
        tail = np.array(self._checksums, "<u4").tobytes()
        self.blob = Blob(self.id, self._length, crc32c(tail))
        yield tail

    def _close_block(self) -> None:
        self._checksums.append(self._open_crc)
        self._open_crc, self._open_bytes = 0, 0


def verify_block(blob: Blob, block: int, data: Buffer, checksums: npt.NDArray[np.uint32], where: str) -> None:
    """Refuse a MiB that is not what was written."""
    if crc32c(data) != int(checksums[block]):
        raise damaged(where, f"the checksum of MiB {block} of {blob.length} bytes does not match")
