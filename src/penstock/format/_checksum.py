"""The one checksum of the format: CRC-32C (Castagnoli).

From awscrt, because verification is on the hot path: it uses the widest carry-less multiplication the processor has,
takes any buffer and releases the GIL.
"""

from awscrt.checksums import combine_crc32c as _combine_crc32c
from awscrt.checksums import crc32c as _crc32c

from penstock.types import Buffer


def crc32c(data: Buffer, before: int = 0) -> int:
    """The checksum of some bytes, or of those that `before` is the checksum of followed by them."""
    checksum: int = _crc32c(data, before)
    return checksum


def combined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two runs of bytes, one behind the other, from the checksums of both."""
    checksum: int = _combine_crc32c(first, second, second_bytes)
    return checksum
