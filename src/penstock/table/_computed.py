"""Computed columns: columns of some rows of a version, in memory, that are read like stored ones.

The values are data files of an overlay store, below a copy of the manifests that lead to them, so that a reader, a
loader and its worker processes need not know of them. All ids derive from a digest of the version and the values:
equal columns of a version are equal in every process, and a loader's state fits them. Rows without a value are never
read; their places are filled with zeros, which compress to nothing, so memory grows with the rows that have one.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import (
    MAX_INLINE_BYTES,
    Column,
    DataFile,
    Field,
    FileColumn,
    Fragment,
    Schema,
    Statistics,
    check_column_name,
    encode_file,
    encode_snapshot,
    make_field,
    row_index_folder,
    row_sizes,
    split_rows,
)
from penstock.format.kinds import BadValueError, Kind
from penstock.storage import OverlayStore
from penstock.table._encode import from_arrow
from penstock.table._gather import concat, take
from penstock.table._pages import FragmentRows, Int64Array
from penstock.table._read import Reader
from penstock.table._statistics import compute_statistics

_FILE_BYTES = 4 << 20
_MAX_FILE_ROWS = 1 << 16
_MIN_FILE_ROWS = 256
_MAX_INT64 = (1 << 63) - 1


def with_computed(
    reader: Reader,
    positions: Int64Array,
    columns: pa.Table,
    *,
    renamed: Mapping[str, str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> Reader:
    """The same version with further columns, whose values at the distinct `positions` are given in that order.

    `renamed` gives stored columns further names: new names to names of columns. A stored column whose name a new one
    takes is hidden. `kinds` has the kinds that do not follow from an Arrow type, such as images. Only rows at
    `positions` may be read from the new columns. Raises `InvalidInputError` for a name that no column can have, a type
    that cannot be stored, and a value of more than 16 MiB.
    """
    renamed = {new: old for new, old in (renamed or {}).items() if new != old}
    schema = _renamed_schema(reader.snapshot.schema, renamed, columns.column_names)
    stored = reader.stored or reader.snapshot
    if not columns.num_columns:
        return replace(reader, snapshot=replace(reader.snapshot, schema=schema), stored=stored)
    order = np.argsort(positions, kind="stable")
    ascending = np.asarray(positions, np.int64)[order]
    plain = storable(columns)
    found = {name: _encode(name, (kinds or {}).get(name), plain.column(name), order) for name in plain.column_names}
    seed = _digest(reader, renamed, ascending, found)
    fields = {name: replace(field, id=derived_int_id(seed, "field", name)) for name, (field, _) in found.items()}
    values = {fields[name].id: array for name, (_, array) in found.items()}
    fields = {name: _with_fill(field, values[field.id]) for name, field in fields.items()}
    held = [row_index_folder(field.id, lengths=lengths) for field in fields.values() for lengths in (False, True)]
    store = OverlayStore(reader.store, ["manifests/", "data/", *held])
    numbers = count()
    tree = reader.tree.derived(store, lambda: derived_id(seed, "manifest", next(numbers)))
    changed, start = {}, 0
    writer = _Writer(store, list(fields.values()), values, seed)
    with reader.missing_as_corrupt():
        for selected in reader.locate(ascending):
            changed[selected.fragment.id] = writer.extended(selected, start)
            start += len(selected.rows)
        nodes = tree.save(tree.replace(reader.snapshot.nodes, changed))
    tree.clear_unsaved()
    snapshot = replace(reader.snapshot, nodes=nodes, schema=Schema((*schema.fields, *fields.values())))
    return replace(reader, store=store, tree=tree, snapshot=snapshot, stored=stored)


def storable(table: pa.Table) -> pa.Table:
    """A table with types that SQL has and columns have not as the nearest ones: decimals as numbers, times as text."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_decimal(kind):
            exact = kind.scale == 0 and kind.precision <= 38 and _fits_int64(column)
            column = column.cast(pa.int64() if exact else pa.float64(), safe=exact)
        elif pa.types.is_time(kind):
            column = column.cast(pa.string())
        elif pa.types.is_null(kind):
            column = column.cast(pa.int64())
        columns[name] = column
    return pa.table(columns)


def _fits_int64(column: pa.ChunkedArray) -> bool:
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_MAX_INT64 - 1 and bounds["max"] <= _MAX_INT64)


def _renamed_schema(schema: Schema, renamed: Mapping[str, str], computed: Sequence[str]) -> Schema:
    """Stored columns, hidden where their name is taken, and further names of some."""
    taken = [*renamed, *computed]
    if repeated := sorted({name for name in taken if taken.count(name) > 1}):
        raise InvalidInputError(f"two columns are called {repeated[0]!r}; give one of them another name with AS")
    for name in taken:
        check_column_name(name)
    fields = [replace(field, dropped=True) if field.name in taken else field for field in schema.fields]
    return Schema((*fields, *(replace(schema[old], name=new) for new, old in renamed.items())))


def _encode(name: str, kind: Kind | None, column: pa.ChunkedArray, order: Int64Array) -> tuple[Field, pa.Array]:
    """A field without an id, and its values in the order of rows; a copy, so that equal values have equal bytes."""
    declared = Column(column.type if kind is None else kind, nullable=column.null_count > 0)
    field = replace(make_field(name, declared), codec="zstd")
    try:
        array = from_arrow(field.kind, column)
    except BadValueError as bad:
        raise InvalidInputError(f"column {name!r}, row {bad.index}: {bad.reason}") from None
    if len(array) and (size := int(row_sizes(array).max())) > MAX_INLINE_BYTES:
        raise InvalidInputError(f"column {name!r}: a computed value of {size} bytes is too large; the limit is 16 MiB")
    return field, copied(array, order)


def copied(array: pa.Array, indices: Int64Array) -> pa.Array:
    """Values by index, never a view: then equal values have equal bytes, also where they are null."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, copied(array.storage, indices))
    return array.take(pa.array(indices))


def _digest(
    reader: Reader, renamed: Mapping[str, str], positions: Int64Array, found: Mapping[str, tuple[Field, pa.Array]]
) -> bytes:
    seen = hashlib.blake2b(encode_snapshot("", reader.snapshot)[1], digest_size=32)
    seen.update(repr(sorted(renamed.items())).encode())
    seen.update(positions.tobytes())
    for name, (field, array) in found.items():
        seen.update(f"{name!r}: {field.kind} {field.nullable}".encode())
        update_digest(seen, array)
    return seen.digest()


def update_digest(seen: "hashlib.blake2b", array: pa.Array) -> None:
    """Add values to a digest; `copied` ones, whose bytes depend on nothing else."""
    seen.update(np.packbits(np.asarray(array.is_valid())).tobytes())
    seen.update(pa.RecordBatch.from_arrays([array], ["values"]).serialize())


def derived_id(seed: bytes, *what: object) -> str:
    """A 128-bit id that follows from a seed, for files and manifests."""
    return hashlib.blake2b(seed + repr(what).encode(), digest_size=16).hexdigest()


def derived_int_id(seed: bytes, *what: object) -> int:
    """A positive 63-bit id that follows from a seed, for fields and fragments."""
    return int(derived_id(seed, *what), 16) % _MAX_INT64 + 1


def _empty_value(field: Field) -> pa.Array:
    """One value of the least size, for places that are never read; null where no other one is short."""
    kind = field.kind.arrow_type
    if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(8))])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([""], pa.string()).cast(kind)
    if pa.types.is_list(kind):
        return pa.array([[]], kind)
    return pa.nulls(1, kind)


def _with_fill(field: Field, values: pa.Array) -> Field:
    """A field whose missing values, in fragments without files of it, are no nulls if it has none."""
    empty = _empty_value(field)
    if values.null_count or empty.null_count:
        return field
    file, data = encode_file([FileColumn(field)], [empty], row_start=0, page_rows=[1])
    page = file.page_range(0)
    return replace(field, fill=bytes(data[page.start : page.end]))


class _Writer:
    """Writes the files of the new columns, fragment by fragment."""

    def __init__(self, store: OverlayStore, fields: Sequence[Field], values: Mapping[int, pa.Array], seed: bytes):
        self._store, self._fields, self._values, self._seed = store, fields, values, seed
        self._empty: dict[tuple[int, int], tuple[DataFile, bytes]] = {}
        """Encoded files without a selected row, by field id and number of rows."""

    def extended(self, selected: FragmentRows, start: int) -> Fragment:
        """A fragment with the new columns; the values of its selected rows begin at index `start`."""
        fragment, files, bounds = selected.fragment, list[DataFile](), list[Statistics]()
        for field in self._fields:
            values = self._values[field.id].slice(start, len(selected.rows))
            files += self._files(field, fragment, selected.rows, values)
            bounds += compute_statistics([field], {field.id: values}).values()
        return replace(fragment, files=(*fragment.files, *files), statistics=(*fragment.statistics, *bounds))

    def _files(self, field: Field, fragment: Fragment, rows: Int64Array, values: pa.Array) -> Iterator[DataFile]:
        mean = max(1, int(row_sizes(values).sum()) // len(values))
        step = min(max(_FILE_BYTES // mean, _MIN_FILE_ROWS), _MAX_FILE_ROWS)
        for row_start in range(0, fragment.rows, step):
            size = min(step, fragment.rows - row_start)
            first, end = np.searchsorted(rows, (row_start, row_start + size)).tolist()
            if first == end:
                file, data = self._empty_file(field, size)
            else:
                file, data = _encode_part(field, values.slice(first, end - first), rows[first:end] - row_start, size)
            file = replace(file, id=derived_id(self._seed, field.id, fragment.id, row_start), row_start=row_start)
            self._store.put(file.key, data)
            yield file

    def _empty_file(self, field: Field, rows: int) -> tuple[DataFile, bytes]:
        """A file of places that are never read; files of equal length share their bytes."""
        if (field.id, rows) not in self._empty:
            none = np.zeros(0, np.int64)
            self._empty[field.id, rows] = _encode_part(field, self._values[field.id].slice(0, 0), none, rows)
        return self._empty[field.id, rows]


def _encode_part(field: Field, values: pa.Array, rows: Int64Array, size: int) -> tuple[DataFile, bytes]:
    """A file of `size` rows with values at some of them."""
    if pa.types.is_primitive(values.type) and not pa.types.is_boolean(values.type) and not values.null_count:
        numbers = np.zeros(size, values.type.to_pandas_dtype())
        numbers[rows] = values.to_numpy()
        array, pages = pa.array(numbers, values.type), [size]
    else:
        indices = np.full(size, len(values), np.int64)
        indices[rows] = np.arange(len(values))
        array = take(concat([values, _empty_value(field)]), indices)
        pages = split_rows(row_sizes(array), field.page_bytes)
    file, data = encode_file([FileColumn(field)], [array], row_start=0, page_rows=pages)
    return file, bytes(data)
