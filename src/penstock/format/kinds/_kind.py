"""What every kind of column can do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, UnsupportedFormat

Values: TypeAlias = npt.NDArray[Any] | list[Any]
"""Many rows of one column: an array where every row has the same shape, else a list with an item per row."""


class BadValue(InvalidInputError):
    """One value cannot be stored; `index` is its place in what was given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadValue"], tuple[int, str]]:
        return BadValue, (self.index, self.reason)


KINDS: dict[str, "type[Kind]"] = {}
"""Every kind by the name it has in schemas."""


class Kind(ABC):
    """The meaning of a column: which values it takes, and the Arrow arrays that hold them.

    Kinds are small frozen values. `to_array` and `to_values` are inverse to each other for values of the kind.
    """

    name: ClassVar[str]
    """The word for this kind in schemas; never changes once released."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.name] = cls

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a column of this kind, as stored in data files."""

    @abstractmethod
    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Make values storable; `None` becomes null, and what does not fit raises `BadValue`."""

    @abstractmethod
    def to_values(self, array: pa.Array) -> Values:
        """Make an array of `arrow_type` useful again; nulls become `None` in lists and zeros in arrays."""

    def flaw(self, array: pa.Array) -> str | None:  # noqa: ARG002
        """What keeps an array of `arrow_type` that somebody else made from being values of this kind, if anything."""
        return None

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The parameters of this kind for a schema, without its name."""

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> "Kind":
        """Undo `to_json`."""
        names = {member.name for member in fields(cls)}  # type: ignore[arg-type]  # every kind is a dataclass
        return cls(**{name: value for name, value in parameters.items() if name in names})

    @property
    def stored_bytes(self) -> int | None:
        """Bytes per row where every row takes the same number and holds nothing but numbers, else None."""
        return None

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value}" for key, value in self.to_json().items() if value not in (None, []))
        return f"{self.name}({inner})" if inner else self.name


def validity(missing: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap of the rows that are there; None where all are."""
    return pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None


def present_rows(array: pa.Array) -> pa.Array:
    """An array without its nulls."""
    if array.null_count == len(array):  # Arrow cannot make an empty array of some nested types, but can cut one
        return array.slice(0, 0)
    return array.drop_null() if array.null_count else array


def missing_rows(values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values are None."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return np.zeros(len(values), bool)
    return np.fromiter((value is None for value in values), bool, len(values))


def check_each(values: Sequence[Any] | npt.NDArray[Any], accepted: type | tuple[type, ...], wanted: str) -> None:
    """Refuse the first value that is neither None nor of an accepted type."""
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, accepted):
            raise BadValue(index, f"expected {wanted}, got {type(value).__name__}")


def binary_array(values: Sequence[bytes | bytearray | memoryview | None]) -> pa.Array:
    """Bytes as an Arrow array, copied once; Arrow's own way would grow its memory and copy what is there again."""
    parts = [b"" if value is None else _in_one_piece(value) for value in values]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.nbytes if isinstance(part, memoryview) else len(part) for part in parts], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidInputError(f"{offsets[-1]} bytes are too many for one array; give fewer rows at a time")
    missing = missing_rows(values)
    buffers = [validity(missing), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers, int(missing.sum()))


def _in_one_piece(value: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    return value.tobytes() if isinstance(value, memoryview) and not value.c_contiguous else value


def kind_to_json(kind: Kind) -> dict[str, Any]:
    """A kind with its name, for a schema."""
    return {"kind": kind.name, **kind.to_json()}


def kind_from_json(described: Mapping[str, Any]) -> Kind:
    """Undo `kind_to_json`."""
    parameters = dict(described)
    name = parameters.pop("kind")
    if name not in KINDS:
        raise UnsupportedFormat(f"this table has a column of kind {name!r}, which this version does not know; upgrade")
    try:
        return KINDS[name].from_json(parameters)
    except InvalidInputError as error:  # such as an element type of a later version
        raise UnsupportedFormat(f"this version cannot read a {name} column of this table: {error}") from error
