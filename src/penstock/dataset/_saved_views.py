"""Saved views: views that are kept with their table under a name, bound to its version."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError, InvalidInputError, NotFoundError, escape_controls
from penstock.format import (
    SavedRows,
    Schema,
    corrupt_error,
    decode_saved_view,
    encode_saved_view,
    encode_snapshot,
    new_id,
)
from penstock.history import (
    MAIN,
    Refs,
    Version,
    ViewRef,
    format_version,
    open_table,
    protect_versions,
    read_commit,
    read_snapshot,
)
from penstock.query import Relation
from penstock.storage import Store
from penstock.table import ROW_ID, AllowedLinks, Reader, Session, is_memory_table, with_computed


@dataclass(frozen=True)
class SavedView:
    """What is known of a saved view without reading it."""

    version: str
    """The version that it is bound to, such as `main@7`."""
    rows: int
    description: str
    """The SQL or the words that it was saved with."""


class SavedViews(Mapping[str, SavedView]):
    """The saved views of a table by name; each access reads the store."""

    def __init__(self, store: Store, refs: Refs) -> None:
        self._store, self._refs = store, refs

    def __getitem__(self, name: str) -> SavedView:
        return self._describe(self._refs.view(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.views())

    def __len__(self) -> int:
        return len(self._refs.views())

    def rename(self, old: str, new: str) -> None:
        """Rename a view. Raises `NotFoundError` if there is no `old`, `AlreadyExistsError` if there is a `new`."""
        self._refs.rename("views", old, new)

    def delete(self, name: str) -> None:
        """Delete a view; vacuum no longer keeps its version for it. Raises `NotFoundError` if there is none."""
        self._refs.delete("views", name)

    def __repr__(self) -> str:
        names = (f"{name}: {view.rows:,} rows of {view.version}" for name, view in self.items())
        return escape_controls(f"{{{', '.join(names)}}}")

    def _describe(self, ref: ViewRef) -> SavedView:
        return SavedView(
            format_version(self._refs.branch_name(ref.branch or ""), ref.version or 0), ref.rows, ref.description
        )


def save_view(view: Relation, name: str, description: str) -> None:
    """Store a view with its table; see `View.save_view`."""
    reader = view.reader
    if is_memory_table(reader):
        raise InvalidInputError(
            "only rows of one table can be saved as a view, and this result has rows of its own; store it as a table:"
            " penstock.create(…).append(view.to_arrow())"
        )
    store, commit = reader.store, reader.commit
    stored = reader.stored or reader.snapshot
    if encode_snapshot("", stored) != encode_snapshot("", read_snapshot(store, commit)):
        raise InvalidInputError(
            "a view of uncommitted changes cannot be saved; commit them first, and choose its rows again"
        )
    info = open_table(store)
    refs = Refs(store, info)
    refs.check_view_available(name)
    saved = _saved_rows(view, stored.schema)
    with protect_versions(store, commit):
        length, crc, data = encode_saved_view(saved)
        target = ViewRef(
            commit.branch, commit.version, secrets.token_hex(16), new_id(), length, crc, len(view.rows), description
        )
        store.put(target.key, data)
        refs.create_view(name, target)


def _saved_rows(view: Relation, stored: Schema) -> SavedRows:
    reader, schema = view.reader, view.reader.snapshot.schema
    positions = view.positions
    names = [name for name in view.columns if name != ROW_ID]
    computed = [name for name in names if not stored.has_id(schema[name].id)]
    renamed = {
        name: f"{schema[name].id:016x}"
        for name in names
        if name not in computed and (name not in stored or stored[name].id != schema[name].id)
    }
    unique, inverse = np.unique(positions, return_inverse=True)
    ids = reader.row_ids(unique)[inverse]
    values = reader.arrow(computed, positions) if computed else pa.table({})
    return SavedRows(ids, values, tuple(view.columns), renamed)


def open_view(store: Store, name: str, links: AllowedLinks) -> Relation:
    """The rows and columns of a saved view.

    Raises `NotFoundError` if there is none of this name, and `CorruptError` if its object does not fit its version.
    """
    info = open_table(store)
    refs = Refs(store, info)
    ref = refs.view(name)
    where = f"{store.uri}/{ref.key}"
    try:
        data = store.get(ref.key)
    except NotFoundError as error:
        raise CorruptError(
            f"the saved view {name!r} is incomplete: {error}. Restore it from a copy of the table"
        ) from error
    saved = decode_saved_view(data, where, length=ref.length, crc=ref.crc, rows=ref.rows)
    commit = read_commit(store, ref.branch or "", ref.version or 0)
    branch = MAIN if commit.branch == info.main else refs.branch_name(commit.branch)
    version = Version(commit, read_snapshot(store, commit))
    reader = Session(store, info, version, branch=branch, links=links, pinned=True).reader
    return _restored(reader, saved, where)


def _restored(reader: Reader, saved: SavedRows, where: str) -> Relation:
    schema = reader.snapshot.schema
    positions = reader.positions_of(saved.row_ids)
    if (positions < 0).any():
        raise corrupt_error(where, f"it has row {int(saved.row_ids[positions < 0][0])}, which its version has not")
    try:
        renamed = {new: schema.by_id(int(id, 16)).name for new, id in saved.renamed.items()}
        if saved.computed.num_columns or renamed:
            unique, first = np.unique(positions, return_index=True)
            reader = with_computed(reader, unique, saved.computed.take(pa.array(first)), renamed=renamed)
        for name in saved.columns:
            if name != ROW_ID:
                reader.snapshot.schema[name]
    except (InvalidInputError, NotFoundError, pa.ArrowException) as error:
        raise corrupt_error(where, f"its columns do not fit its version: {error}") from error
    return Relation(reader, saved.columns, positions)
