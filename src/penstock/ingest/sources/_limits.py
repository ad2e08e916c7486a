"""The limits on what a source file may expand to, shared by every format.

Lengths in a file are claims. A reader checks a claim before it allocates: against the file size where bytes are stored
as they are, against `MAX_BLOCK_BYTES` where a unit is decoded in memory as a whole, and against `max_unpacked_bytes`
where a stream of bytes is decompressed piece by piece. Columnar files have no such limit: a column of equal values
takes almost no bytes, and batches bound the memory.
"""

from collections.abc import Sequence
from zipfile import ZipInfo

import pyarrow as pa

from penstock.errors import SampleError

MAX_BLOCK_BYTES = 1 << 30
"""The largest unit decoded in memory at once: a record batch, a Parquet read, a snappy shard, an MCAP chunk."""
MAX_RATIO = 1000
"""Dictionary-encoded text and deflated zeros come close to this; larger files that exceed it are bombs."""
HARMLESS_BYTES = 1 << 30
"""A file that unpacks to less is accepted at any ratio."""


class DamagedFileError(SampleError):
    """A file is unreadable from some position on; rows read before that position are valid."""


UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, DamagedFileError)
"""Errors of a damaged file; storage errors are not among them."""


def max_unpacked_bytes(packed_bytes: int) -> int:
    """The most that `packed_bytes` may decompress to."""
    return max(HARMLESS_BYTES, MAX_RATIO * packed_bytes)


def check_unpacked(packed_bytes: int, unpacked_bytes: int) -> None:
    """Raise `DamagedFileError` if the expansion looks like a decompression bomb."""
    if unpacked_bytes > max_unpacked_bytes(packed_bytes):
        raise DamagedFileError(
            f"unpacks from {packed_bytes:,} to at least {unpacked_bytes:,} bytes, which looks like a decompression bomb"
        )


def check_block(size: int, unit: str) -> None:
    """Raise `DamagedFileError` if a unit of the file is too large to be decoded in memory."""
    if not 0 <= size <= MAX_BLOCK_BYTES:
        raise DamagedFileError(
            f"has a {unit} of {size:,} bytes, and the limit is {MAX_BLOCK_BYTES:,}; write the file again with a smaller"
            f" {unit}"
        )


def check_zip(members: Sequence[ZipInfo], size: int) -> None:
    """Raise `DamagedFileError` if the members of a zip file of `size` bytes overlap or look like a bomb."""
    if sum(member.compress_size for member in members) > size:
        raise DamagedFileError("has members that overlap: together they are larger than the file")
    check_unpacked(size, sum(member.file_size for member in members))
