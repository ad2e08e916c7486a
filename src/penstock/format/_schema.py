"""Columns as a user declares them, and fields as a table stores them."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.codecs import Compression, ImageCodec
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format._layout import new_number
from penstock.format.kinds import Bytes, Image, Json, Kind, Linked, Tensor, Text, kind_from_json, kind_to_json

DEFAULT_FILE_BYTES = 16 << 20
DEFAULT_PAGE_BYTES = 256 << 10
INLINE_BYTES = 16 << 20
"""Longer values become blobs, objects of their own."""

_PYTHON_KINDS: dict[type, Kind] = {
    bool: Tensor("bool"),
    int: Tensor("int64"),
    float: Tensor("float64"),
    complex: Tensor("complex128"),
    str: Text(),
    bytes: Bytes(),
    dict: Json(),
}


@dataclass(frozen=True)
class Column:
    """A column to be made: its kind and how it is stored."""

    kind: Kind
    nullable: bool = False
    """Whether rows may lack a value."""
    codec: str | None = None
    """none, lz4, zstd or zstd:LEVEL; for images also jpeg:QUALITY, png, webp, …"""
    file_bytes: int = DEFAULT_FILE_BYTES
    """About how large this column's files become."""
    page_bytes: int = DEFAULT_PAGE_BYTES
    """About how much is read and verified at once; one row is at least one page."""

    def __post_init__(self) -> None:
        if not 1 <= self.page_bytes <= self.file_bytes:
            raise InvalidInputError(f"a page ({self.page_bytes} bytes) must be smaller than a file ({self.file_bytes})")
        if self.file_bytes > 1 << 30:
            raise InvalidInputError(f"files of {self.file_bytes} bytes are too large; 1 GiB is the most")
        if self.codec is None or isinstance(self.kind, Image):
            if isinstance(self.kind, Image) and self.codec not in (
                None,
                "none",
            ):  # an image column's codec is the image's
                object.__setattr__(self, "kind", replace(self.kind, codec=ImageCodec.parse(str(self.codec)).spec))
            object.__setattr__(self, "codec", "none")
        Compression.parse(self.codec or "none")


ColumnLike: TypeAlias = Column | Kind | type | str | np.dtype[Any] | pa.DataType


@dataclass(frozen=True)
class Field:
    """A column of a table: a name that can change and an id that cannot."""

    id: int
    name: str
    kind: Kind
    nullable: bool
    codec: str
    file_bytes: int
    page_bytes: int
    fill: bytes | None = field(default=None, repr=False)
    """One row, as an Arrow IPC message: the value of rows whose fragments do not hold this field. None means null."""
    dropped: bool = False
    """Not in the table any more, but older files hold it and need its type to be read."""

    @property
    def stored_bytes(self) -> int | None:
        """Bytes per row where the stored bytes are the values, so that no page needs to be parsed."""
        return self.kind.stored_bytes if self.codec == "none" else None

    def to_json(self) -> dict[str, Any]:
        described: dict[str, Any] = {"id": f"{self.id:016x}", "name": self.name, "type": kind_to_json(self.kind)}
        if self.nullable:
            described["nullable"] = True
        if self.codec != "none":
            described["codec"] = self.codec
        if self.file_bytes != DEFAULT_FILE_BYTES:
            described["file_bytes"] = self.file_bytes
        if self.page_bytes != DEFAULT_PAGE_BYTES:
            described["page_bytes"] = self.page_bytes
        if self.fill is not None:
            described["fill"] = b64encode(self.fill).decode()
        if self.dropped:
            described["dropped"] = True
        return described

    @staticmethod
    def from_json(described: Mapping[str, Any]) -> "Field":
        fill = described.get("fill")
        return Field(
            id=int(described["id"], 16),
            name=described["name"],
            kind=kind_from_json(described["type"]),
            nullable=described.get("nullable", False),
            codec=described.get("codec", "none"),
            file_bytes=described.get("file_bytes", DEFAULT_FILE_BYTES),
            page_bytes=described.get("page_bytes", DEFAULT_PAGE_BYTES),
            fill=None if fill is None else b64decode(fill),
            dropped=described.get("dropped", False),
        )

    def __str__(self) -> str:
        extras = ("?" if self.nullable else "") + (f" [{self.codec}]" if self.codec != "none" else "")
        return f"{self.name}: {self.kind}{extras}"


@dataclass(frozen=True)
class Schema:
    """The fields of a table, dropped ones included; iterating gives those that are there."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InvalidInputError(f"two columns are called {sorted(twice)[0]!r}")
        for known in self:
            if known.nullable and f"{known.name}_mask" in names:
                raise InvalidInputError(
                    f"column {known.name!r} is nullable, and batches say in '{known.name}_mask' which of its values are"
                    " there: no other column can be called so"
                )

    def __iter__(self) -> Iterator[Field]:
        return (field for field in self.fields if not field.dropped)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self)

    def __getitem__(self, name: str) -> Field:
        for known in self:
            if known.name == name:
                return known
        raise NotFoundError(f"there is no column {name!r}; the table has {', '.join(self.names) or 'no columns'}")

    @property
    def names(self) -> list[str]:
        return [field.name for field in self]

    def by_id(self, id: int) -> Field:
        """A field by its id, dropped ones included."""
        for known in self.fields:
            if known.id == id:
                return known
        raise NotFoundError(
            f"there is no column with id {id:016x}; the table has {', '.join(self.names) or 'no columns'}"
        )

    def knowing(self, fields: Iterable[Field]) -> "Schema":
        """This schema with the types of fields that files may hold though the table has not got them."""
        mine = {known.id for known in self.fields}
        return Schema((*self.fields, *(replace(known, dropped=True) for known in fields if known.id not in mine)))

    def replaced(self, changed: Field) -> "Schema":
        return Schema(tuple(changed if field.id == changed.id else field for field in self.fields))

    def __str__(self) -> str:
        return "\n".join(map(str, self))


SchemaLike: TypeAlias = Schema | pa.Schema | Mapping[str, ColumnLike]


def make_field(name: str, column: ColumnLike, *, fill: bytes | None = None) -> Field:
    """Give a column its identity."""
    check_name(name)
    column = as_column(name, column)
    return Field(
        id=new_number(),
        name=name,
        kind=column.kind,
        nullable=column.nullable,
        codec=Compression.parse(column.codec or "none").spec,
        file_bytes=column.file_bytes,
        page_bytes=column.page_bytes,
        fill=fill,
    )


def make_schema(columns: SchemaLike) -> Schema:
    """Understand what a user gave as a schema."""
    if isinstance(columns, Schema):
        return columns
    if isinstance(columns, pa.Schema):
        return Schema(tuple(make_field(f.name, Column(kind_of_arrow(f), nullable=f.nullable)) for f in columns))
    return Schema(tuple(make_field(name, column) for name, column in columns.items()))


def as_column(name: str, column: ColumnLike) -> Column:
    """Understand what a user gave as a column."""
    if isinstance(column, Column):
        return column
    if isinstance(column, Kind):
        return Column(column)
    if isinstance(column, pa.DataType):
        return Column(kind_of_arrow(pa.field(name, column)))
    if isinstance(column, type) and column in _PYTHON_KINDS:
        return Column(_PYTHON_KINDS[column])
    if isinstance(column, str) and column in ("text", "bytes", "json"):
        return Column({"text": Text(), "bytes": Bytes(), "json": Json()}[column])
    try:
        return Column(Tensor(np.dtype(column).name if isinstance(column, type) else column))  # type: ignore[arg-type]
    except (TypeError, InvalidInputError) as error:
        raise InvalidInputError(
            f"column {name!r}: {column!r} is neither a kind (penstock.Image(), …) nor an element type ({error})"
        ) from None


def check_name(name: object) -> None:
    """Refuse names that could not be written everywhere a column's name is."""
    if not isinstance(name, str) or not name or len(name) > 255 or not name.isprintable():
        raise InvalidInputError(f"a column's name is 1 to 255 printable characters, not {name!r}")
    if name.startswith("_"):
        raise InvalidInputError(f"column {name!r}: names that begin with _ are Penstock's own")


def kind_of_arrow(given: pa.Field) -> Kind:
    """The kind that an Arrow column is stored as."""
    kind = _kind_of_arrow(given.type)
    if kind is None:
        raise InvalidInputError(f"column {given.name!r}: Arrow type {given.type} has no kind here; cast it first")
    return kind


def _kind_of_arrow(given: pa.DataType) -> Kind | None:
    from penstock.format.kinds import List, Struct

    types = pa.types
    if isinstance(given, pa.FixedShapeTensorType):
        axes = given.permutation or range(len(given.shape))
        return Tensor(str(given.value_type.to_pandas_dtype()().dtype), tuple(given.shape[axis] for axis in axes))
    if isinstance(given, pa.BaseExtensionType):
        return _kind_of_arrow(given.storage_type)
    if types.is_dictionary(given):
        return _kind_of_arrow(given.value_type)
    if types.is_boolean(given):
        return Tensor("bool")
    if types.is_integer(given) or types.is_floating(given):
        return Tensor(np.dtype(given.to_pandas_dtype()).name)
    if types.is_timestamp(given) or types.is_duration(given):
        return Tensor(f"{'datetime64' if types.is_timestamp(given) else 'timedelta64'}[{given.unit}]")
    if types.is_date(given):
        return Tensor("datetime64[s]")
    if types.is_string(given) or types.is_large_string(given) or types.is_string_view(given):
        return Text()
    if any(is_one(given) for is_one in (types.is_binary, types.is_large_binary, types.is_binary_view)):
        return Bytes()
    if types.is_fixed_size_binary(given):
        return Bytes()
    if types.is_fixed_size_list(given):
        inner = _kind_of_arrow(given.value_type)
        if isinstance(inner, Tensor) and not inner.ragged:
            return Tensor(inner.dtype, (given.list_size, *inner.shape))
        return None if inner is None else List(inner)
    if types.is_list(given) or types.is_large_list(given):
        inner = _kind_of_arrow(given.value_type)
        if isinstance(inner, Tensor) and inner.shape == ():
            return Tensor(inner.dtype, (None,))
        return None if inner is None else List(inner)
    if types.is_struct(given):
        inner_kinds = [(f.name, _kind_of_arrow(f.type)) for f in given]
        known = [(name, kind) for name, kind in inner_kinds if kind is not None]
        return Struct(known) if known and len(known) == len(inner_kinds) else None
    return None


def linked_kind(kind: Kind) -> Kind:
    """The kind of the values that a reader sees, behind a link or not."""
    return kind.to if isinstance(kind, Linked) else kind
