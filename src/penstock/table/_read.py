"""Read rows of a snapshot: any rows in any order, or many rows in sequence with prefetch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, RawIOBase
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    SampleError,
    SnapshotExpiredError,
)
from penstock.format import Commit, Field, Fragment, Snapshot, value_kind
from penstock.format.kinds import Kind, Linked, LinkTarget, Tensor, Values, nat_as_null
from penstock.history import Tree, expired_error
from penstock.storage import Prefetch, Store, read_ahead
from penstock.table._blobs import BlobReader, decode_reference, read_blob
from penstock.table._gather import RawColumn, dense_views, gather
from penstock.table._links import LinkContainers, LinkReader
from penstock.table._pages import FragmentRows, Int64Array, NarrowPages, fetch_pages, rows_by_fragment

ROW_ID = "_row_id"
"""The virtual column of row ids: every table has it, no file stores it."""

_RANDOM_READERS = 64  # one round trip for a batch of rows in pages of their own
_SCAN_PREFETCH = Prefetch(4)
_TASK_BYTES = 8 << 20


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot."""

    store: Store
    tree: Tree
    containers: LinkContainers
    snapshot: Snapshot
    commit: Commit
    """The commit that the snapshot is, or is based on."""
    name: str = ""
    """The name of that version: `main@7`."""
    stored: Snapshot | None = None
    """The snapshot without computed columns; None if there are none."""

    def raw_columns(
        self,
        fields: Sequence[Field],
        positions: Sequence[Int64Array],
        *,
        as_arrow: bool = False,
        max_workers: int = _RANDOM_READERS,
        cache: NarrowPages | None = None,
    ) -> list[dict[str, RawColumn]]:
        """Undecoded columns of several groups of ascending positions; a page that two groups need is read once."""
        ids = [field.id for field in fields]
        groups = [self.locate(group) for group in positions]
        parts = [part for group in groups for part in group]
        with self.missing_as_corrupt():
            pages = fetch_pages(self.store, parts, ids, max_workers=max_workers, cache=cache)
        return [
            {field.name: gather(self.snapshot.schema, field, group, pages, as_arrow=as_arrow) for field in fields}
            for group in groups
        ]

    def locate(self, positions: Int64Array) -> list[FragmentRows]:
        """Ascending positions as rows of fragments."""
        with self.missing_as_corrupt():
            return rows_by_fragment(self.tree, self.snapshot.nodes, positions)

    def columns(
        self, names: Sequence[str], positions: Sequence[Int64Array], *, max_workers: int = _RANDOM_READERS
    ) -> list[dict[str, "ColumnValues"]]:
        """Decoded columns of several groups of positions in any order."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        groups = [_sort_unique(group) for group in positions]
        raw_groups = self.raw_columns(fields, [group for group, _ in groups], max_workers=max_workers)
        found = []
        for raw, (group, inverse) in zip(raw_groups, groups, strict=True):
            columns = {}
            for name in names:
                if name == ROW_ID:
                    columns[name] = ColumnValues(self.row_ids(group), None).take(inverse)
                else:
                    columns[name] = self.decode(self.snapshot.schema[name], raw[name]).take(inverse)
            found.append(columns)
        return found

    def decode(self, field: Field, raw: RawColumn) -> "ColumnValues":
        """Values as users see them, with blobs and links loaded; raises `SampleError` for bytes that do not decode."""
        if raw.dense is not None:
            return ColumnValues(raw.dense, np.ones(len(raw.dense), bool) if field.nullable else None)
        try:
            values = self._decode(field, value_kind(field.kind), raw)
        except SampleError as error:
            raise SampleError(f"column {field.name!r}: {error}") from error
        if raw.array is None or not (field.nullable and isinstance(values, np.ndarray)):
            return ColumnValues(values, None)
        return ColumnValues(values, np.asarray(raw.array.is_valid()))

    def _decode(self, field: Field, kind: Kind, raw: RawColumn) -> Values:
        try:
            return kind.to_values(self.load_external(field, raw))
        except PenstockError:
            raise
        except (ValueError, RecursionError) as error:  # of Arrow, Unicode and JSON
            raise SampleError(f"the bytes are no {kind}: {error}") from error

    def load_external(self, field: Field, raw: RawColumn) -> pa.Array:
        """The column's array with links and blob references replaced by their bytes."""
        array = raw.array
        assert array is not None
        if isinstance(field.kind, Linked) and array.type == field.kind.arrow_type:
            found = pa.array(self.containers.read(field.kind.to_values(array)), pa.large_binary())
            return found if field.kind.to.arrow_type == pa.binary() else found.cast(pa.large_string())
        blobs = raw.blobs()
        if not blobs:
            return array
        values = array.to_pylist()
        for row, reference in blobs.items():
            values[row] = read_blob(self.store, decode_reference(reference))
        return pa.array(values, pa.large_binary())

    def arrow(self, names: Sequence[str], positions: Int64Array) -> pa.Table:
        """Rows in any order as an Arrow table; media stay encoded, blobs and links are loaded."""
        rows, inverse = _sort_unique(positions)
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        raw = self.raw_columns(fields, [rows], as_arrow=True)[0]
        columns = {}
        for name in names:
            if name == ROW_ID:
                columns[name] = pa.array(self.row_ids(rows))
            else:
                columns[name] = self._arrow_column(self.snapshot.schema[name], raw[name])
        table = pa.table(columns)
        return table if inverse is None else table.take(pa.array(inverse))

    def _arrow_column(self, field: Field, raw: RawColumn) -> pa.Array:
        array = as_native_arrow(field, self.load_external(field, raw))
        # loaded blobs are large_binary: one type, whether a group of rows has blobs or not
        return array.cast(pa.large_binary()) if array.type == pa.binary() else array

    def open(self, field: Field, position: int) -> RawIOBase | BytesIO:
        """One value of a bytes column as a file that fetches only the ranges it reads, verified as `LinkReader` says.

        Raises `InvalidInputError` for another kind of column, `NotFoundError` for a null.
        """
        if value_kind(field.kind).arrow_type != pa.binary():
            raise InvalidInputError(
                f"column {field.name!r} holds {field.kind} and not bytes: it cannot be opened as a file"
            )
        raw = self.raw_columns([field], [np.array([position])], as_arrow=True)[0][field.name]
        assert raw.array is not None
        for reference in raw.blobs().values():
            return BlobReader(self.store, decode_reference(reference))
        [value] = field.kind.to_values(raw.array) if isinstance(field.kind, Linked) else raw.array.to_pylist()
        if value is None:
            raise NotFoundError(f"column {field.name!r} has no value in row {position}")
        return (
            LinkReader(self.containers.store(value.container), value)
            if isinstance(value, LinkTarget)
            else BytesIO(value)
        )

    def row_ids(self, positions: Int64Array) -> Int64Array:
        """Row ids at ascending positions."""
        parts = [located.fragment.all_row_ids[located.rows] for located in self.locate(positions)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def positions_of(self, row_ids: Int64Array) -> Int64Array:
        """Positions of row ids, in their order; -1 for an id that no live row has."""
        ids, inverse = np.unique(row_ids, return_inverse=True)
        positions = np.full(len(ids), -1, np.int64)
        for fragment, start in self.tree.fragments_with_ids(self.snapshot.nodes, ids):
            found, rows = fragment.rows_of_ids(ids)
            if fragment.deleted is not None:
                live = ~fragment.deleted_rows
                kept, ranks = live[rows], np.cumsum(live) - 1
                found, rows = found[kept], ranks[rows[kept]]
            positions[found] = start + rows
        return positions[inverse]

    def batches(self, names: Sequence[str], groups: Iterator[Int64Array]) -> Iterator[dict[str, "ColumnValues"]]:
        """Values of many groups of positions in sequence, prefetched by a few threads."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        tasks = _batch_tasks(groups, max(1, _TASK_BYTES // max(1, self.row_bytes(fields))))
        found = read_ahead(lambda task: self.columns(names, task, max_workers=2), tasks, prefetch=_SCAN_PREFETCH)
        return chain.from_iterable(found)

    def page_batches(self, names: Sequence[str], start: int, end: int) -> Iterator[dict[str, Values]]:
        """Batches of consecutive rows, split at page boundaries of the largest column, so that its arrays are views."""
        tasks = self._scan_tasks(names, start, end)
        return chain.from_iterable(read_ahead(lambda task: self._scan(names, task), tasks, prefetch=_SCAN_PREFETCH))

    def _scan_tasks(self, names: Sequence[str], start: int, end: int) -> Iterator["_ScanTask"]:
        """One task per file of the largest column."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        position = 0
        for fragment in self.tree.fragments(self.snapshot.nodes):
            first, last = max(start - position, 0), min(end - position, fragment.live)
            position += fragment.live
            if first >= last:
                continue
            rows = fragment.live_rows[first:last]
            largest = max(fields, key=lambda field: _column_bytes(fragment, field), default=None)
            files = () if largest is None else fragment.files_of(largest.id)
            if largest is None or not files:
                yield _ScanTask(FragmentRows(fragment, rows), None)
            for file in files:
                inside = rows[slice(*np.searchsorted(rows, (file.row_start, file.row_end)))]
                if len(inside):
                    yield _ScanTask(FragmentRows(fragment, inside), largest)

    def _scan(self, names: Sequence[str], task: "_ScanTask") -> list[dict[str, Values]]:
        """The batches of one task; plain dictionaries, because there are thousands per second."""
        selected, largest = task.selected, task.largest
        fields = {name: self.snapshot.schema[name] for name in names if name != ROW_ID}
        with self.missing_as_corrupt():
            pages = fetch_pages(self.store, [selected], [field.id for field in fields.values()], max_workers=1)
        views = None if largest is None else dense_views(largest, selected, pages)
        counts = [len(selected.rows)]
        if largest is not None:
            counts = [_count(part.rows) for part in selected.by_page(largest.id)]
        columns: dict[str, list[Any]] = {}
        for name in names:
            if views is not None and name != ROW_ID and fields[name] is largest:
                columns[name] = views
                if fields[name].nullable:
                    columns[f"{name}_mask"] = [np.ones(count, bool) for count in counts]
                continue
            if name == ROW_ID:
                column = ColumnValues(selected.fragment.all_row_ids[selected.rows], None)
            else:
                column = self.decode(fields[name], gather(self.snapshot.schema, fields[name], [selected], pages))
            for label, values in as_batch({name: column}).items():
                columns[label] = _split(values, counts)
        return [dict(zip(columns, batch, strict=True)) for batch in zip(*columns.values(), strict=True)]

    @contextmanager
    def missing_as_corrupt(self) -> Iterator[None]:
        """Translate `NotFoundError`: `SnapshotExpiredError` if vacuum removed this version, else `CorruptError`."""
        try:
            with self.missing_as_expired():
                yield
        except SnapshotExpiredError:
            raise
        except NotFoundError as error:
            raise CorruptError(f"an object that this version needs is missing: {error}") from error

    @contextmanager
    def missing_as_expired(self) -> Iterator[None]:
        """Translate `NotFoundError` to `SnapshotExpiredError` if vacuum removed this version."""
        try:
            yield
        except NotFoundError as error:
            try:
                self.store.head(self.commit.snapshot.key)
            except NotFoundError:
                raise expired_error(self.store, self.commit) from error
            raise

    def row_bytes(self, fields: Sequence[Field]) -> int:
        """Approximate bytes of a row of these columns, estimated from the first fragment."""
        first = next(iter(self.tree.fragments(self.snapshot.nodes)), None)
        if first is None:
            return 1
        files = {file for field in fields for file in first.files_of(field.id)}
        return sum(file.length for file in files) // max(1, first.rows)


@dataclass(slots=True)
class ColumnValues:
    """A column's values; for an array of a nullable column also the mask of values that are present."""

    values: Values
    mask: npt.NDArray[np.bool_] | None

    def take(self, indices: Int64Array | None) -> "ColumnValues":
        """Values by index; None for all of them in order."""
        if indices is None:
            return self
        mask = None if self.mask is None else self.mask[indices]
        if isinstance(self.values, np.ndarray):
            return ColumnValues(self.values[indices], mask)
        return ColumnValues([self.values[index] for index in indices], mask)

    def item(self, index: int) -> Any:
        """One value; None if it is null."""
        if self.mask is not None and not self.mask[index]:
            return None
        return self.values[index]


def as_batch(columns: Mapping[str, ColumnValues]) -> dict[str, Values]:
    """The batch that users get: `col`, and `col_mask` for an array of a nullable column."""
    batch: dict[str, Values] = {}
    for name, column in columns.items():
        batch[name] = column.values
        if column.mask is not None:
            batch[f"{name}_mask"] = column.mask
    return batch


def as_native_arrow(field: Field, array: pa.Array) -> pa.Array:
    """A stored column with bools and times as Arrow's own types, and null for "not a time"."""
    if isinstance(field.kind, Tensor) and field.kind.shape == ():
        if field.kind.dtype == "bool":
            return array.cast(pa.bool_())
        if field.kind.element.logical.kind in "Mm":
            unit = field.kind.dtype.partition("[")[2].rstrip("]")
            is_time = field.kind.element.logical.kind == "M"
            return nat_as_null(field.kind, array).view(pa.timestamp(unit) if is_time else pa.duration(unit))
    return array


def native_type(field: Field) -> pa.DataType:
    """The Arrow type of a column as `as_native_arrow` gives it."""
    return as_native_arrow(field, pa.nulls(0, field.kind.arrow_type)).type


def _sort_unique(rows: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Rows ascending without repeats, and the inverse index; None if they are so already."""
    if len(rows) < 2 or (np.diff(rows) > 0).all():
        return rows, None
    return np.unique(rows, return_inverse=True)


@dataclass(frozen=True)
class _ScanTask:
    """Rows of one file of the largest column."""

    selected: FragmentRows
    largest: Field | None


def _split(values: Values, counts: Sequence[int]) -> list[Values]:
    """Split into parts of these lengths."""
    ends = list(accumulate(counts))
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _count(rows: "slice | Int64Array") -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _column_bytes(fragment: Fragment, field: Field) -> int:
    return sum(file.length for file in fragment.files_of(field.id))


def _batch_tasks(groups: Iterator[Int64Array], task_rows: int) -> Iterator[list[Int64Array]]:
    """Combine groups of rows into tasks of at least `task_rows` rows."""
    task: list[Int64Array] = []
    count = 0
    for rows in groups:
        task.append(rows)
        count += len(rows)
        if count >= task_rows:
            yield task
            task, count = [], 0
    if task:
        yield task
