"""Links: values whose bytes remain in an external object."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format.kinds._kind import Kind, Values, check_types, corrupt_struct_reason, kind_from_json, kind_to_json


@dataclass(frozen=True)
class Link:
    """A link to the bytes of a value, as given by a user."""

    uri: str
    """The object: `s3://bucket/path`, `gs://…`, `az://…`, `file:///…` or a path."""
    offset: int = 0
    length: int | None = None
    """Length of the value in bytes; None for all bytes from `offset` to the end of the object."""
    etag: str | None = None
    """The object's etag; if None, it is requested from the store when the row is appended."""
    crc32c: int | None = None
    """Checksum of the value's bytes; verified on reading unless None."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", os.fspath(self.uri))
        if self.offset < 0 or (self.length is not None and self.length < 0):
            raise InvalidInputError(f"{self.uri}: offset and length must not be negative")
        if self.crc32c is not None and not 0 <= self.crc32c < 1 << 32:
            raise InvalidInputError(f"{self.uri}: crc32c must be an integer of 32 bits, not {self.crc32c}")


@dataclass(frozen=True)
class LinkTarget:
    """A resolved link, as stored: a declared container and a path in it."""

    container: str
    path: str
    offset: int
    length: int
    etag: str | None
    crc32c: int | None


_LINK_TYPE = pa.struct(
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
    """Values of another kind in external objects; the column stores links to their bytes."""

    to: Kind
    typical_bytes: int = 0
    """Typical bytes of a value, or 0 if unknown; loaders derive block sizes from it."""

    name: ClassVar[str] = "linked"

    def __post_init__(self) -> None:
        if self.to.arrow_type not in (pa.binary(), pa.string()):
            raise InvalidInputError(f"only kinds stored as bytes or text can be linked, not {self.to}")

    @property
    def arrow_type(self) -> pa.DataType:
        return _LINK_TYPE

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        check_types(values, LinkTarget, "a penstock.Link")
        names = [field.name for field in _LINK_TYPE]
        rows = [None if value is None else {name: getattr(value, name) for name in names} for value in values]
        return pa.array(rows, _LINK_TYPE)

    def invalid_reason(self, array: pa.Array) -> str | None:
        return None if array.null_count == len(array) else "expected a penstock.Link, got its stored form"

    def corrupt_reason(self, array: pa.Array) -> str | None:
        required = ("container", "path", "offset", "length")
        return corrupt_struct_reason(array, required=required, lengths=("offset", "length"))

    def to_values(self, array: pa.Array) -> Values:
        return [None if row is None else LinkTarget(**row) for row in array.to_pylist()]

    def to_json(self) -> dict[str, Any]:
        return {"to": kind_to_json(self.to)} | ({"typical_bytes": self.typical_bytes} if self.typical_bytes else {})

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(kind_from_json(parameters["to"]), int(parameters.get("typical_bytes", 0)))

    def __str__(self) -> str:
        return f"linked({self.to})"
