"""A table in use: one version of it, what has been changed since, and how that becomes the next version."""

import getpass
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import CommitStateUnknown, ConflictError, InvalidInputError
from penstock.format import (
    ColumnLike,
    Commit,
    Field,
    FileColumn,
    Schema,
    Snapshot,
    TableInfo,
    check_name,
    encode_file,
    infer_schema,
    make_field,
    new_id,
)
from penstock.format.kinds import Image, Tensor, Values
from penstock.history import (
    AddField,
    Changes,
    DropField,
    Note,
    RenameField,
    RowIds,
    Tree,
    Version,
    commit_changes,
    discard,
    open_version,
    publish,
    read_snapshot,
)
from penstock.storage import Store
from penstock.table._append import FileWriter, FragmentWriter, join, write_columns
from penstock.table._encode import Encoder
from penstock.table._input import Appendable, column_batches
from penstock.table._links import AllowedLinks, Containers
from penstock.table._pages import Wanted, by_fragment, take
from penstock.table._read import Reader, as_batch
from penstock.table._select import positions
from penstock.table._statistics import statistics_of
from penstock.table._update import update_fragment

_COMPUTE_ROWS = 1024
_LARGEST_FILL = 64 << 10


class Session:
    """Reads a version of a table and stages changes to it; nothing is seen by others before `commit`."""

    def __init__(
        self, store: Store, info: TableInfo, version: Version, *, links: AllowedLinks = False, pinned: bool = False
    ) -> None:
        self.store, self.info, self.pinned = store, info, pinned
        self.tree = Tree(store)
        self.containers = Containers(links, dict(version.snapshot.containers))
        self.version = version
        self.snapshot: Snapshot = version.snapshot
        """The version with the staged changes on top."""
        self.changes = Changes(version.snapshot)
        self._row_ids = RowIds(store, claims=version.snapshot.claims, single_writer=info.single_writer)
        self._doubtful: Commit | None = None

    @property
    def reader(self) -> Reader:
        return Reader(self.store, self.tree, self.containers, self.snapshot)

    def append(self, data: Appendable) -> int:
        """Stage rows; all of them, or none if one is refused."""
        self._check_writable()
        encoder = self._encoder()
        edits: list[AddField] = []
        schema = self.snapshot.schema
        rows = 0
        with FileWriter(self.store) as files, _Undo(self.store, encoder):
            writer: FragmentWriter | None = None
            for batch in column_batches(data):
                if not len(schema):
                    inferred = infer_schema(batch.columns)
                    if not len(inferred):
                        raise InvalidInputError("the table has no columns, and neither have the first rows")
                    edits = [AddField(field) for field in inferred]
                    schema = Schema((*schema.fields, *inferred.fields))
                if writer is None:
                    writer = FragmentWriter(files, list(schema), self._row_ids)
                writer.write(encoder.batch(schema, batch))
                rows += batch.rows
            if writer is None:
                return 0
            writer.close_fragment()
        nodes = self.tree.append(self.snapshot.nodes, writer.fragments)
        self.changes.appended += writer.fragments
        self.changes.edits += edits
        self._stage(nodes, schema, encoder.new_containers)
        self.changes.note("append", added=rows)
        return rows

    def update(self, where: Any, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]) -> int:
        """Stage other values for some rows; a mapping has a value for all of them, or a list with one for each."""
        self._check_writable()
        rows = positions(self.reader, where)
        if len(np.unique(rows)) < len(rows):
            raise InvalidInputError("the rows to update are given more than once")
        if not len(rows) or not values:
            return 0
        if callable(values):
            values = values(as_batch(self.reader.columns(self.snapshot.schema.names, [rows])[0]))
        fields = [self.snapshot.schema[name] for name in values]
        encoder = self._encoder()
        order = np.argsort(rows, kind="stable")
        with FileWriter(self.store) as files, _Undo(self.store, encoder):
            arrays: dict[int, pa.Array] = {}
            for field in fields:
                column = _per_row(field, values[field.name], len(rows))
                arrays.update(encoder.column(field, column, rows=len(rows), first_row=0))
            arrays = {id: take(array, order) for id, array in arrays.items()}
            changed, start = [], 0
            for want in self._wanted(rows[order]):
                part = {id: array.slice(start, len(want.rows)) for id, array in arrays.items()}
                after = update_fragment(self.store, files, self.snapshot.schema, want, fields, part)
                changed.append((want.fragment, after))
                start += len(want.rows)
        self._replace(changed, encoder.new_containers)
        self.changes.note("update", updated=len(rows))
        return len(rows)

    def delete(self, where: Any) -> int:
        """Stage the removal of rows."""
        self._check_writable()
        rows = np.unique(positions(self.reader, where))
        changed = []
        for want in self._wanted(rows):
            gone = np.zeros(want.fragment.rows, bool)
            gone[want.rows] = True
            changed.append((want.fragment, want.fragment.without_rows(gone)))
        if changed:
            self._replace(changed, {})
            self.changes.note("delete", deleted=len(rows))
        return len(rows)

    def add_column(
        self,
        name: str,
        column: ColumnLike | None,
        *,
        fill: Any,
        values: Any,
        compute: Callable[[dict[str, Values]], Any] | None,
        inputs: Sequence[str] | None,
    ) -> None:
        """Stage a column: one value for every row (no data is written), one for each, or a function of a batch."""
        self._check_writable()
        if sum(given is not None for given in (fill, values, compute)) > 1:
            raise InvalidInputError("give only one of fill, values and compute")
        if name in self.snapshot.schema:
            raise InvalidInputError(f"there is a column {name!r} already; drop it first, or update it")
        check_name(name)
        if values is None and compute is None:
            self._add_filled(name, column, fill)
        else:
            self._add_computed(name, column, _source(values, compute, self, inputs))
        self.changes.note("add_column")

    def drop_column(self, name: str) -> None:
        """Stage the removal of a column; its bytes stay for older versions."""
        self._check_writable()
        self._edit(DropField(self.snapshot.schema[name].id, name))
        self.changes.note("drop_column")

    def rename_column(self, old: str, new: str) -> None:
        """Stage another name for a column."""
        self._check_writable()
        check_name(new)
        if new in self.snapshot.schema:
            raise InvalidInputError(f"there is a column {new!r} already")
        self._edit(RenameField(self.snapshot.schema[old].id, old, new))
        self.changes.note("rename_column")

    def commit(self, message: str) -> Version:
        """Publish what is staged as the next version; without staged changes nothing happens."""
        if self._doubtful is not None and self._settle_doubt(self._doubtful):
            return self.version
        if not self.changes:
            return self.version
        self._check_writable()
        staged = replace(self.snapshot, claims=self._row_ids.claims)
        attempts: list[Commit] = []
        try:
            version = commit_changes(
                self.store,
                self.tree,
                self.version,
                staged,
                self.changes,
                single_writer=self.info.single_writer,
                note=Note(message, author(), new_id()),
                on_attempt=attempts.append,
            )
        except CommitStateUnknown:
            self._doubtful = attempts[-1]
            raise
        self._move_to(version)
        return version

    def rollback(self) -> None:
        """Forget what is staged."""
        if self._doubtful is not None and self._settle_doubt(self._doubtful):
            raise ConflictError("the commit in doubt had landed and cannot be rolled back; the table is at its version")
        self._move_to(self.version)

    def refresh(self) -> Version:
        """Move to the newest version."""
        if self.changes:
            raise InvalidInputError("there are staged changes; commit them or roll them back before moving on")
        self._move_to(open_version(self.store, self.version.commit.branch))
        self.pinned = False
        return self.version

    def _settle_doubt(self, commit: Commit) -> bool:
        """Find out what became of a commit whose outcome was unknown; publishes it if it never arrived."""
        landed = publish(self.store, commit, single_writer=self.info.single_writer)
        self._doubtful = None
        if landed:
            self._move_to(Version(commit, read_snapshot(self.store, commit)))
        return landed

    def _move_to(self, version: Version) -> None:
        self.version, self.snapshot = version, version.snapshot
        self.changes = Changes(version.snapshot)
        self.containers.declared = dict(version.snapshot.containers)
        self.tree.release()

    def _check_writable(self) -> None:
        if self.pinned:
            raise InvalidInputError(
                f"this is version {self.version.commit.version}, loaded to be read; load the table without a version to"
                " change it"
            )
        self.info.features.check_writable(self.store.uri)
        self.snapshot.features.check_writable(self.store.uri)

    def _encoder(self) -> Encoder:
        return Encoder(self.store, self.containers, {}, [])

    def _wanted(self, rows: Any) -> list[Wanted]:
        return by_fragment(self.tree.at(self.snapshot.nodes, rows))

    def _edit(self, edit: AddField | DropField | RenameField) -> None:
        self.snapshot = replace(self.snapshot, schema=edit.apply(self.snapshot.schema))
        self.changes.edits.append(edit)

    def _replace(self, changed: Sequence[tuple[Any, Any]], containers: Mapping[str, str]) -> None:
        nodes = self.tree.replace(self.snapshot.nodes, {after.id: after for _, after in changed})
        self.changes.replace(changed)
        self._stage(nodes, self.snapshot.schema, containers)

    def _stage(self, nodes: Any, schema: Schema, containers: Mapping[str, str]) -> None:
        self.changes.containers.update(containers)
        self.snapshot = replace(
            self.snapshot, nodes=nodes, schema=schema, containers={**self.snapshot.containers, **containers}
        )

    def _add_filled(self, name: str, column: ColumnLike | None, fill: Any) -> None:
        if column is None:
            if fill is None:
                raise InvalidInputError(f"column {name!r}: give its kind, or a value to fill it with")
            column = infer_schema({name: [fill]})[name].kind
        field = make_field(name, column)
        if fill is not None:
            encoder = self._encoder()
            with _Undo(self.store, encoder):
                arrays = encoder.column(field, [fill], rows=1, first_row=0)
                file, data = encode_file([FileColumn(field)], [arrays[field.id]], row_start=0, page_rows=[1])
                at = file.page_range(0)
                if at.length > _LARGEST_FILL or encoder.blobs:
                    raise InvalidInputError(f"column {name!r}: the fill value is too large; give values")
            field = replace(field, fill=bytes(data[at.start : at.end]))
            self._stage(self.snapshot.nodes, self.snapshot.schema, encoder.new_containers)
        elif not field.nullable and self.snapshot.live:
            raise InvalidInputError(
                f"column {name!r}: the rows that are there need a value: give fill, values or compute, or make it"
                " nullable"
            )
        self._edit(AddField(field))

    def _add_computed(self, name: str, column: ColumnLike | None, source: Callable[[Any, int], Any]) -> None:
        encoder = self._encoder()
        field = None if column is None else make_field(name, column)
        changed = []
        start = 0
        with FileWriter(self.store) as files, _Undo(self.store, encoder):
            for fragment in list(self.tree.fragments(self.snapshot.nodes)):
                if not fragment.live:
                    continue
                parts = []
                for first in range(start, start + fragment.live, _COMPUTE_ROWS):
                    rows = np.arange(first, min(first + _COMPUTE_ROWS, start + fragment.live))
                    found = source(rows, first)
                    if len(found) != len(rows):
                        raise InvalidInputError(f"column {name!r}: {len(rows)} rows, but {len(found)} values")
                    if field is None:
                        field = infer_schema({name: found}).fields[0]
                    parts.append(encoder.column(field, found, rows=len(rows), first_row=first))
                assert field is not None
                arrays = _spread(parts, fragment.deleted_rows)
                written = [future.result() for future in write_columns(files, [field], arrays)]
                bounds = tuple(statistics_of([field], arrays).values())
                after = replace(fragment, files=(*fragment.files, *written), statistics=(*fragment.statistics, *bounds))
                changed.append((fragment, after))
                start += fragment.live
        if field is None:
            raise InvalidInputError(f"column {name!r}: the table has no rows to compute it from; give its kind")
        self._edit(AddField(field, computed=True))
        if changed:
            self._replace(changed, encoder.new_containers)


@dataclass
class _Undo:
    """Removes the blobs and forgets the containers of a call that failed: nothing refers to them."""

    store: Store
    encoder: Encoder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None:
            return
        for name in self.encoder.new_containers:
            self.encoder.containers.declared.pop(name, None)
        if self.encoder.blobs:
            discard(self.store, [blob.key for blob in self.encoder.blobs])


def _spread(parts: Sequence[Mapping[int, pa.Array]], deleted: Any) -> dict[int, pa.Array]:
    """Columns of live rows as columns of all rows; a deleted row repeats its neighbour."""
    arrays = join(parts)
    if not deleted.any():
        return arrays
    places = np.maximum(np.cumsum(~deleted) - 1, 0)
    return {id: take(array, places) for id, array in arrays.items()}


def _source(
    values: Any, compute: Callable[[dict[str, Values]], Any] | None, session: Session, inputs: Sequence[str] | None
) -> Callable[[Any, int], Any]:
    if compute is not None:
        reader = session.reader
        names = list(inputs) if inputs is not None else reader.snapshot.schema.names
        return lambda rows, _: compute(as_batch(reader.columns(names, [rows])[0]))
    count = session.snapshot.live
    if not hasattr(values, "__len__") or len(values) != count:
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise InvalidInputError(f"values needs one value for each of the {count} rows, got {got}")
    return lambda rows, first: values[first : first + len(rows)]


def _per_row(field: Field, value: Any, count: int) -> Any:
    """A column from what an update was given: a list with a value per row, or one value for all."""
    if isinstance(field.kind, Tensor) and not isinstance(value, pa.Array | pa.ChunkedArray):
        one = value is None or _is_one(field.kind, value, count)
    elif isinstance(field.kind, Image) and isinstance(value, np.ndarray) and value.dtype != object:
        one = value.ndim < 4 and value.shape[1:] != field.kind.shape
    else:
        one = not isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)
    if one:
        return [value] * count
    if len(value) != count:
        raise InvalidInputError(f"column {field.name!r}: {count} rows, but {len(value)} values")
    return value


def _is_one(kind: Tensor, value: Any, count: int) -> bool:
    """Whether numbers are one row's; lists of unequal or missing items are values of several rows."""
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    if array.dtype == object and array.ndim:
        return False
    if array.shape == (0,) and kind.ragged:
        return True
    fits = all(n in (None, m) for n, m in zip(kind.shape, array.shape, strict=False))
    return array.ndim == len(kind.shape) and (fits or len(array) != count)


def author() -> str:
    """Who commits, by the name the machine knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
