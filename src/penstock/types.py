"""Small value types that every room shares."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, Generic, TypeAlias, TypeVar

import ml_dtypes
import numpy as np

from penstock.errors import InvalidInputError

__all__ = ["SMALL_FLOATS", "Buffer", "ByteRange", "RowRange", "World", "cached_property", "parse_size"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that can be written without a copy; wrap other buffers in a `memoryview`."""

SMALL_FLOATS: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}
"""The float dtypes that numpy itself lacks, by name; torch uses the same names."""


def parse_size(name: str, size: object) -> int | None:
    """A number of bytes, given as such or as text with a unit; raises `InvalidInputError` for anything else."""
    if size is None or (isinstance(size, Integral) and not isinstance(size, bool)):
        return None if size is None else int(size)
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", size, re.IGNORECASE) if isinstance(size, str) else None
    )
    if found is None:
        raise InvalidInputError(f'{name} is a number of bytes, or text such as "1GB" or "512MiB", not {size!r}')
    number, unit, binary = found.groups()
    factor: int = (1024 if binary else 1000) ** ("kmgt".index(unit.lower()) + 1 if unit else 0)
    return round(float(number) * factor)


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
        """Number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, order=True)
class RowRange:
    """Half-open range of rows."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class World:
    """One process among those that read an epoch together."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} is out of range for {self.num_ranks} ranks")


if sys.version_info >= (3, 12):
    from functools import cached_property
else:
    _Value = TypeVar("_Value")

    class cached_property(Generic[_Value]):  # noqa: N801
        """The lock-free one of Python 3.12: earlier ones hold a lock that all instances of the class share."""

        def __init__(self, compute: Callable[[Any], _Value]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, owner: Any, _: type) -> _Value:
            if owner is None:
                return self  # type: ignore[return-value]
            value = owner.__dict__[self._name] = self._compute(owner)
            return value
