"""What changed between two versions: rows by their ids, columns by their field ids, values on demand."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.format import DataFile, Field, Fragment, Schema, unpack_bitmap
from penstock.history import difference
from penstock.table._pages import Cells, Rows, Wanted, fetch, gather
from penstock.table._read import Reader


@dataclass(frozen=True)
class Diff:
    """The difference of two versions; `before` and `after` read their values."""

    before: Reader
    after: Reader
    added: Rows
    """Ids of rows that only the new version has."""
    deleted: Rows
    """Ids of rows that only the old version has."""
    updated: Mapping[int, Rows]
    """By field id: the rows whose value differs; a column that only one version has is not counted."""
    columns_added: tuple[Field, ...] = ()
    columns_dropped: tuple[Field, ...] = ()
    columns_renamed: tuple[tuple[str, str], ...] = field(default=())

    @property
    def updated_rows(self) -> Rows:
        """Ids of rows with a value that differs."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.updated.values()]))

    def __bool__(self) -> bool:
        columns = self.columns_added or self.columns_dropped or self.columns_renamed
        return bool(len(self.added) or len(self.deleted) or len(self.updated_rows) or columns)


def diff(before: Reader, after: Reader) -> Diff:
    """Compare two versions of one table."""
    found = difference(before.tree, before.snapshot.nodes, after.snapshot.nodes)
    old_ids, new_ids = _live_ids(found.old.values()), _live_ids(found.new.values())
    old, new = before.snapshot.schema, after.snapshot.schema
    both = [(old.by_id(known.id), known) for known in new if any(known.id == other.id for other in old)]
    return Diff(
        before,
        after,
        added=np.setdiff1d(new_ids, old_ids),
        deleted=np.setdiff1d(old_ids, new_ids),
        updated=_updated(before, after, found.old, found.new, [known for _, known in both]),
        columns_added=tuple(known for known in new if not _has(old, known.id)),
        columns_dropped=tuple(known for known in old if not _has(new, known.id)),
        columns_renamed=tuple((a.name, b.name) for a, b in both if a.name != b.name),
    )


def _has(schema: Schema, id: int) -> bool:
    return any(known.id == id for known in schema)


def _live_ids(fragments: Iterable[Fragment]) -> Rows:
    parts = [fragment.all_row_ids[fragment.live_rows] for fragment in fragments]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))


def _updated(
    before: Reader, after: Reader, old: Mapping[int, Fragment], new: Mapping[int, Fragment], fields: list[Field]
) -> dict[int, Rows]:
    """Rows of both whose values differ: noted in the files where an update wrote them, else compared."""
    homes = _Homes(old)
    found: dict[int, list[Rows]] = {known.id: [] for known in fields}
    for fragment in new.values():
        ids = fragment.all_row_ids
        live = fragment.live_rows
        shared = live[np.isin(ids[live], homes.ids)]
        if not len(shared):
            continue
        for known in fields:
            candidates, doubtful = _candidates(known.id, fragment, shared, homes)
            rows = np.union1d(candidates, doubtful)
            if len(rows):
                found[known.id].append(_differing(before, after, known, fragment, rows, homes))
    return {id: np.sort(np.concatenate(parts)) for id, parts in found.items() if sum(map(len, parts))}


class _Homes:
    """Where rows were in the old version, by row id."""

    def __init__(self, fragments: Mapping[int, Fragment]) -> None:
        self.fragments = list(fragments.values())
        ids = [fragment.all_row_ids[fragment.live_rows] for fragment in self.fragments]
        rows = [fragment.live_rows for fragment in self.fragments]
        owner = [np.full(len(part), number) for number, part in enumerate(ids)]
        nothing = [np.zeros(0, np.int64)]
        whole = np.concatenate(nothing + ids)
        order = np.argsort(whole, kind="stable")
        self.ids = whole[order]
        self._rows = np.concatenate(nothing + rows)[order]
        self._owner = np.concatenate(nothing + owner)[order]

    def find(self, ids: Rows) -> Iterator[tuple[Fragment, Rows, Rows]]:
        """For ids that are all here: each old fragment, which of the ids it has (by place), and their rows in it."""
        at = np.searchsorted(self.ids, ids)
        for number in np.unique(self._owner[at]):
            here = np.flatnonzero(self._owner[at] == number)
            yield self.fragments[number], here, self._rows[at[here]]


def _candidates(id: int, fragment: Fragment, rows: Rows, homes: _Homes) -> tuple[Rows, Rows]:
    """Rows of a field that an update noted as changed, and rows about which nothing is noted."""
    noted, doubtful = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    ids = fragment.all_row_ids
    for old, here, old_rows in homes.find(ids[rows]):
        mine = rows[here]
        old_files, new_files = old.files_of(id), fragment.files_of(id)
        if not old_files and not new_files:
            continue
        if not old_files or not new_files:
            doubtful.append(mine)  # one side has the fill value
            continue
        for file in new_files:
            inside = (mine >= file.row_start) & (mine < file.row_end)
            for other in old_files:
                both = inside & (old_rows >= other.row_start) & (old_rows < other.row_end)
                if not both.any() or file.id == other.id:
                    continue
                changed = _changed_since(file, other.id)
                if changed is None:
                    doubtful.append(mine[both])
                else:
                    noted.append(mine[both][changed[mine[both] - file.row_start]])
    return np.concatenate(noted), np.concatenate(doubtful)


def _changed_since(file: DataFile, base: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]] | None":
    for change in file.changed:
        if change.base == base:
            return unpack_bitmap(change.rows, file.rows)
    return None


def _differing(before: Reader, after: Reader, known: Field, fragment: Fragment, rows: Rows, homes: _Homes) -> Rows:
    """Those of the rows whose stored values really differ; both sides' values of just these rows are read."""
    ids = fragment.all_row_ids[rows]
    new = _cells(after, known, Wanted(fragment, rows))
    different = np.zeros(len(rows), bool)
    for old, here, old_rows in homes.find(ids):
        order = np.argsort(old_rows)
        was = _cells(before, known, Wanted(old, old_rows[order]))
        now = new.take(pa.array(here[order]))
        pairs = zip(was.to_pylist(), now.to_pylist(), strict=True)
        different[here[order]] = [repr(a) != repr(b) for a, b in pairs]  # by their text: NaN is the same as NaN
    return ids[different]


def _cells(reader: Reader, known: Field, want: Wanted) -> pa.Array:
    """A column's stored values, with references where values are blobs, as something that can be compared."""
    pages = fetch(reader.store, [want], [known.id], max_workers=4)
    schema_field = reader.snapshot.schema.by_id(known.id)
    cells: Cells = gather(reader.snapshot.schema, schema_field, [want], pages, parse=True)
    assert cells.array is not None
    array = cells.array.storage if isinstance(cells.array, pa.ExtensionArray) else cells.array
    if cells.references is None:
        return array
    return pa.StructArray.from_arrays([array, cells.references], names=["value", "blob"])
