"""The only checksum of the format: CRC-32C (Castagnoli).

awscrt, because verification is on the hot path: it uses the widest carry-less multiplication of the processor, accepts
any buffer and releases the GIL.
"""

from awscrt.checksums import combine_crc32c
from awscrt.checksums import crc32c as _crc32c

from penstock.types import Buffer

__all__ = ["combine_crc32c", "crc32c"]
"""`combine_crc32c(first, second, second_bytes)` is the checksum of two consecutive byte ranges, from their own."""


def crc32c(data: Buffer, initial: int = 0) -> int:
    """The checksum of `data`, continuing from the checksum of preceding bytes."""
    checksum: int = _crc32c(data, initial)
    return checksum
