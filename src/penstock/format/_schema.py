"""Columns as a user declares them, and fields as a table stores them."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.codecs import Compression, ImageCodec
from penstock.errors import InvalidInputError, NotFoundError, escape_controls
from penstock.format._layout import new_int_id
from penstock.format._sealed import from_json
from penstock.format.kinds import (
    Bytes,
    Image,
    Json,
    Kind,
    Linked,
    Tensor,
    Text,
    any_shape,
    kind_from_json,
    kind_to_json,
    parse_type,
)
from penstock.types import cached_property

DEFAULT_FILE_BYTES = 16 << 20
DEFAULT_PAGE_BYTES = 256 << 10
MAX_INLINE_BYTES = 16 << 20
"""Larger values are stored as blobs, in separate objects."""

_LISTED_NAMES = 50
_MAX_DEPTH = 63
"""Arrow does not read types that are nested more deeply."""

_PYTHON_KINDS: dict[type, Kind] = {
    bool: Tensor("bool"),
    int: Tensor("int64"),
    float: Tensor("float64"),
    complex: Tensor("complex128"),
    str: Text(),
    bytes: Bytes(),
    dict: Json(),
}


@dataclass(frozen=True, init=False)
class Column:
    """A column declaration: the kind of its values and storage options.

    `kind` is a kind (`penstock.Image()`), a type as text (`"float32[14]?"`), a Python type, or a numpy or Arrow type.
    """

    kind: Kind
    nullable: bool = False
    """Whether values may be null."""
    codec: str | None = None
    """none, lz4, zstd or zstd:LEVEL; for images also jpeg:QUALITY, png, webp, …"""
    file_bytes: int = DEFAULT_FILE_BYTES
    """Target size of the column's files."""
    page_bytes: int = DEFAULT_PAGE_BYTES
    """Target size of a page, the unit of reads and checksums; a page holds at least one row."""

    def __init__(
        self,
        kind: "Kind | type | str | np.dtype[Any] | pa.DataType",
        nullable: bool = False,
        codec: str | None = None,
        file_bytes: int = DEFAULT_FILE_BYTES,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> None:
        found, is_nullable, own_codec = (kind, False, None) if isinstance(kind, Kind) else _parse_kind(kind)
        object.__setattr__(self, "kind", found)
        object.__setattr__(self, "nullable", nullable or is_nullable)
        object.__setattr__(self, "codec", own_codec if codec is None else codec)
        object.__setattr__(self, "file_bytes", file_bytes)
        object.__setattr__(self, "page_bytes", page_bytes)
        self._validate()

    def _validate(self) -> None:
        if not 1 <= self.page_bytes <= self.file_bytes:
            raise InvalidInputError(
                f"page_bytes ({self.page_bytes}) must be positive and not exceed file_bytes ({self.file_bytes})"
            )
        if self.file_bytes > 1 << 30:
            raise InvalidInputError(f"file_bytes {self.file_bytes} is too large; the limit is 1 GiB")
        if self.codec is None or isinstance(self.kind, Image):
            if isinstance(self.kind, Image) and self.codec not in (None, "none"):  # then it is the image codec
                object.__setattr__(self, "kind", replace(self.kind, codec=ImageCodec.parse(str(self.codec)).spec))
            object.__setattr__(self, "codec", "none")
        Compression.parse(self.codec or "none")


ColumnLike: TypeAlias = Column | Kind | type | str | np.dtype[Any] | pa.DataType


@dataclass(frozen=True)
class Field:
    """A column of a table, identified by its id; its name can change."""

    id: int
    name: str
    kind: Kind
    nullable: bool
    codec: str
    file_bytes: int
    page_bytes: int
    fill: bytes | None = dataclass_field(default=None, repr=False)
    """Value of rows whose fragment lacks this field: an Arrow IPC message of one row, or None for null."""
    dropped: bool = False
    """Whether the column was dropped; its type is still needed to decode files that hold it."""

    @property
    def fixed_row_bytes(self) -> int | None:
        """Bytes per row of uncompressed fixed-width values, which are read without parsing pages; else None."""
        return self.kind.fixed_row_bytes if self.codec == "none" else None

    def to_json(self) -> dict[str, Any]:
        """The field as the snapshot stores it."""
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
        """Inverse of `to_json`; raises `ValueError` for an invalid field, `UnsupportedFormatError` for a new kind."""
        members = from_json(_StoredField, described)
        kind = kind_from_json(members.type)
        if not 0 < (id := int(members.id, 16)) < 1 << 63:
            raise ValueError(f"{members.id!r} is no field id")
        if not 1 <= members.page_bytes <= members.file_bytes:
            raise ValueError("the sizes of a column's files and pages are invalid")
        if members.codec != "none":
            Compression.parse(members.codec)
        _check_depth(kind.arrow_type)  # the type itself raises for a tensor that is too large for Arrow
        fill = None if members.fill is None else b64decode(members.fill, validate=True)
        return Field(id, members.name, kind, *members.storage, fill=fill, dropped=members.dropped)

    def __str__(self) -> str:
        extras = ("?" if self.nullable else "") + (f" [{self.codec}]" if self.codec != "none" else "")
        return escape_controls(f"{self.name}: {self.kind}{extras}")


@dataclass(frozen=True)
class _StoredField:
    """The members of a field in a snapshot."""

    id: str
    name: str
    type: Mapping[str, Any]
    nullable: bool = False
    codec: str = "none"
    file_bytes: int = DEFAULT_FILE_BYTES
    page_bytes: int = DEFAULT_PAGE_BYTES
    fill: str | None = None
    dropped: bool = False

    @property
    def storage(self) -> tuple[bool, str, int, int]:
        return self.nullable, self.codec, self.file_bytes, self.page_bytes


@dataclass(frozen=True)
class Schema:
    """The fields of a table, including dropped ones; iteration skips dropped fields."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if duplicates := [name for name, count in Counter(self.names).items() if count > 1]:
            raise InvalidInputError(f"duplicate column name {min(duplicates)!r}; rename one of the columns")
        for field in self:
            if field.nullable and f"{field.name}_mask" in self:
                raise InvalidInputError(
                    f"column {field.name!r} is nullable, and batches hold its validity mask as '{field.name}_mask';"
                    " rename the column of that name"
                )

    def __iter__(self) -> Iterator[Field]:
        return (field for field in self.fields if not field.dropped)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Field:
        field = self._by_name.get(name)
        if field is None:
            raise NotFoundError(f"there is no column {name!r}; the table has {self._some_names}")
        return field

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self}

    @cached_property
    def _by_id(self) -> dict[int, Field]:
        return {field.id: field for field in self.fields}

    @property
    def _some_names(self) -> str:
        """The first names, for messages."""
        more = len(self) - _LISTED_NAMES
        return ", ".join(self.names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "") or "no columns"

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [field.name for field in self]

    def by_id(self, id: int) -> Field:
        """A field by its id, including dropped ones; raises `NotFoundError`."""
        field = self._by_id.get(id)
        if field is None:
            raise NotFoundError(f"there is no column with id {id:016x}; the table has {self._some_names}")
        return field

    def has_id(self, id: int) -> bool:
        """Whether a field that is not dropped has this id."""
        field = self._by_id.get(id)
        return field is not None and not field.dropped

    def with_dropped(self, fields: Iterable[Field]) -> "Schema":
        """This schema plus missing `fields` as dropped ones, so that files that hold them can be decoded."""
        ids = {field.id for field in self.fields}
        return Schema((*self.fields, *(replace(field, dropped=True) for field in fields if field.id not in ids)))

    def with_field(self, changed: Field) -> "Schema":
        """This schema with the field of the same id replaced."""
        return Schema(tuple(changed if field.id == changed.id else field for field in self.fields))

    def with_any_shape(self, ids: Collection[int]) -> "Schema":
        """This schema with images of any shape in the fields of these ids whose shape was inferred."""
        if not ids:
            return self
        return Schema(tuple(replace(f, kind=any_shape(f.kind)) if f.id in ids else f for f in self.fields))

    def __str__(self) -> str:
        return "\n".join(map(str, self))


SchemaLike: TypeAlias = Schema | pa.Schema | Mapping[str, ColumnLike]


def make_field(name: str, column: ColumnLike, *, fill: bytes | None = None) -> Field:
    """A new field, with a new id, from a column declaration; raises `InvalidInputError`."""
    check_column_name(name)
    column = as_column(name, column)
    _check_depth(column.kind.arrow_type)
    return Field(
        id=new_int_id(),
        name=name,
        kind=column.kind,
        nullable=column.nullable,
        codec=Compression.parse(column.codec or "none").spec,
        file_bytes=column.file_bytes,
        page_bytes=column.page_bytes,
        fill=fill,
    )


def make_schema(columns: SchemaLike) -> Schema:
    """Parse a schema: columns by name, or an Arrow schema; raises `InvalidInputError`."""
    if isinstance(columns, Schema):
        return columns
    if isinstance(columns, pa.Schema):
        return Schema(tuple(make_field(f.name, Column(kind_from_arrow(f), nullable=f.nullable)) for f in columns))
    return Schema(tuple(make_field(name, column) for name, column in columns.items()))


def as_column(name: str, column: ColumnLike) -> Column:
    """Parse a column declaration; raises `InvalidInputError`."""
    if isinstance(column, Column):
        return column
    try:
        return Column(column)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error}") from None


def _parse_kind(given: type | str | np.dtype[Any] | pa.DataType) -> tuple[Kind, bool, str | None]:
    """The kind, whether it is nullable, and the codec of a type; raises `InvalidInputError`."""
    if isinstance(given, str):
        return parse_type(given)
    if isinstance(given, pa.DataType):
        if (kind := _kind_from_arrow(given)) is None:
            raise InvalidInputError(f"Arrow type {given} is not supported; cast it first")
        return kind, False, None
    if isinstance(given, type) and given in _PYTHON_KINDS:
        return _PYTHON_KINDS[given], False, None
    if isinstance(given, type) and issubclass(given, Kind):
        raise InvalidInputError(f"{given.__name__} is a class; write penstock.{given.__name__}(…)")
    try:
        return Tensor(np.dtype(given).name if isinstance(given, type) else given), False, None  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{given!r} is neither a kind (penstock.Image(), …), nor a type as text, nor an element type ({error})"
        ) from None


def _check_depth(arrow_type: pa.DataType, above: int = 0) -> None:
    """Raise `InvalidInputError` for a type nested more deeply than Arrow reads."""
    if above > _MAX_DEPTH:
        raise InvalidInputError(f"lists and structs can be nested {_MAX_DEPTH} deep at most; store JSON instead")
    for index in range(arrow_type.num_fields):
        _check_depth(arrow_type.field(index).type, above + 1)


def column_from_json(document: Mapping[str, Any]) -> Column:
    """A column from the members of `Field.to_json`; its id and name are ignored."""
    codec = document.get("codec", "none")
    sizes = {key: document[key] for key in ("file_bytes", "page_bytes") if key in document}
    kind = kind_from_json(document["type"])
    return Column(kind, bool(document.get("nullable")), None if codec == "none" else codec, **sizes)


def check_column_name(name: object) -> None:
    """Raise `InvalidInputError` for an invalid column name."""
    if not isinstance(name, str) or not name or len(name) > 255 or not name.isprintable():
        raise InvalidInputError(f"a column name has 1 to 255 printable characters, not {name!r}")
    if name.startswith("_"):
        raise InvalidInputError(f"column {name!r}: names that begin with _ are reserved")


def kind_from_arrow(field: pa.Field) -> Kind:
    """The kind that stores an Arrow column; raises `InvalidInputError`."""
    kind = _kind_from_arrow(field.type)
    if kind is None:
        raise InvalidInputError(f"column {field.name!r}: Arrow type {field.type} is not supported; cast it first")
    return kind


def _kind_from_arrow(type: pa.DataType) -> Kind | None:
    from penstock.format.kinds import List, Struct

    types = pa.types
    if isinstance(type, pa.FixedShapeTensorType):
        axes = type.permutation or range(len(type.shape))
        return Tensor(str(type.value_type.to_pandas_dtype()().dtype), tuple(type.shape[axis] for axis in axes))
    if isinstance(type, pa.BaseExtensionType):
        return _kind_from_arrow(type.storage_type)
    if types.is_dictionary(type):
        return _kind_from_arrow(type.value_type)
    if types.is_boolean(type):
        return Tensor("bool")
    if types.is_integer(type) or types.is_floating(type):
        return Tensor(np.dtype(type.to_pandas_dtype()).name)
    if types.is_timestamp(type) or types.is_duration(type):
        return Tensor(f"{'datetime64' if types.is_timestamp(type) else 'timedelta64'}[{type.unit}]")
    if types.is_date(type):
        return Tensor("datetime64[s]")
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return Text()
    if any(is_one(type) for is_one in (types.is_binary, types.is_large_binary, types.is_binary_view)):
        return Bytes()
    if types.is_fixed_size_binary(type):
        return Bytes()
    if types.is_fixed_size_list(type):
        inner = _kind_from_arrow(type.value_type)
        if isinstance(inner, Tensor) and not inner.ragged:
            return Tensor(inner.dtype, (type.list_size, *inner.shape))
        return None if inner is None else List(inner)
    if types.is_list(type) or types.is_large_list(type):
        inner = _kind_from_arrow(type.value_type)
        if isinstance(inner, Tensor) and inner.shape == ():
            return Tensor(inner.dtype, (None,))
        return None if inner is None else List(inner)
    if types.is_struct(type):
        members = [(f.name, _kind_from_arrow(f.type)) for f in type]
        supported = [(name, kind) for name, kind in members if kind is not None]
        return Struct(supported) if supported and len(supported) == len(members) else None
    return None


def value_kind(kind: Kind) -> Kind:
    """The kind of the values that a reader returns; that of the target for links."""
    return kind.to if isinstance(kind, Linked) else kind
