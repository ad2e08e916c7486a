"""The small words every room shares."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Buffer", "ByteRange", "RowRange", "World"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that can be written without a copy; wrap anything else in a `memoryview`."""


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Half-open range of bytes inside an object."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a byte range: [{self.start}, {self.end})")

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, order=True)
class RowRange:
    """Half-open range of rows."""

    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class World:
    """One process among those that read an epoch together."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"there is no rank {self.rank} of {self.num_ranks}")
