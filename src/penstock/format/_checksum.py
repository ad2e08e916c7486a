"""The one checksum of the format: CRC-32C (Castagnoli).

From awscrt, because verification is on the hot path: it uses the widest carry-less multiplication the processor has,
takes any buffer and releases the GIL.
"""

from awscrt.checksums import combine_crc32c as combined
from awscrt.checksums import crc32c as _crc32c

from penstock.types import Buffer

__all__ = ["combined", "crc32c"]
"""`combined(first, second, second_bytes)` is the checksum of two runs of bytes together, from those of each."""


def crc32c(data: Buffer, before: int = 0) -> int:
    """The checksum of some bytes, or of those that `before` is the checksum of followed by them."""
    checksum: int = _crc32c(data, before)
    return checksum
