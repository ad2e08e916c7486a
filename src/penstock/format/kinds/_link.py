"""Values whose bytes stay where they are, in an object that somebody else owns."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format.kinds._kind import Kind, Values, check_each, kind_from_json, kind_to_json


@dataclass(frozen=True)
class Link:
    """Where a linked value's bytes are, as a user gives it."""

    uri: str
    """The object: `s3://bucket/path`, `gs://…`, `az://…`, `file:///…` or a path."""
    offset: int = 0
    length: int | None = None
    """Bytes of the object that are the value; None for all from `offset` to the end."""
    etag: str | None = None
    """The object's version; asked of the store when the row is appended, if not given."""
    crc32c: int | None = None
    """Checksum of the value's bytes; verified on reading where it is known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", os.fspath(self.uri))
        if self.offset < 0 or (self.length is not None and self.length < 0):
            raise InvalidInputError(f"{self.uri}: an offset and a length are not negative")
        if self.crc32c is not None and not 0 <= self.crc32c < 1 << 32:
            raise InvalidInputError(f"{self.uri}: a crc32c is a number of 32 bits, not {self.crc32c}")


@dataclass(frozen=True)
class Place:
    """A link as stored: resolved, and split into a declared container and a path inside it."""

    container: str
    path: str
    offset: int
    length: int
    etag: str | None
    crc32c: int | None


_PLACE = pa.struct(
    [
        ("container", pa.string()),
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("etag", pa.string()),
        ("crc32c", pa.uint32()),
    ]
)


@dataclass(frozen=True)
class Linked(Kind):
    """Values of another kind, in place: the column holds where each one's bytes are."""

    to: Kind
    typical_bytes: int = 0
    """About how long a value is, if that was known when the column was made: loaders cut their blocks by it."""

    name: ClassVar[str] = "linked"

    def __post_init__(self) -> None:
        if self.to.arrow_type not in (pa.binary(), pa.string()):
            raise InvalidInputError(f"only kinds that are bytes or text can be linked, not {self.to}")

    @property
    def arrow_type(self) -> pa.DataType:
        return _PLACE

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        check_each(values, Place, "a penstock.Link")
        names = [field.name for field in _PLACE]
        rows = [None if value is None else {name: getattr(value, name) for name in names} for value in values]
        return pa.array(rows, _PLACE)

    def flaw(self, array: pa.Array) -> str | None:
        return None if array.null_count == len(array) else "expected a penstock.Link, got its stored form"

    def to_values(self, array: pa.Array) -> Values:
        return [None if row is None else Place(**row) for row in array.to_pylist()]

    def to_json(self) -> dict[str, Any]:
        return {"to": kind_to_json(self.to)} | ({"typical_bytes": self.typical_bytes} if self.typical_bytes else {})

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(kind_from_json(parameters["to"]), int(parameters.get("typical_bytes", 0)))

    def __str__(self) -> str:
        return f"linked({self.to})"
