"""The small words every room shares."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["Buffer", "ByteRange", "RowRange", "World", "cached_property"]

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


if sys.version_info >= (3, 12):
    from functools import cached_property
else:
    _Value = TypeVar("_Value")

    class cached_property(Generic[_Value]):  # noqa: N801
        """That of Python 3.12: before it, one lock kept every thread waiting that asked for any object's property."""

        def __init__(self, work_out: Callable[[Any], _Value]) -> None:
            self._work_out, self.__doc__ = work_out, work_out.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, owner: Any, _: type) -> _Value:
            if owner is None:
                return self  # type: ignore[return-value]
            value = owner.__dict__[self._name] = self._work_out(owner)
            return value
