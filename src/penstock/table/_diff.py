"""What changed between two versions: rows by their ids, columns by their field ids, values on demand.

Updates note which values they changed, so that nothing needs to be read of fragments that both versions have. Values
are compared only where nothing is noted, as after very many updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.format import DataFile, Field, Fragment, Schema, unpack_bitmap
from penstock.history import difference
from penstock.table._pages import Rows, Wanted, fetch, gather, take
from penstock.table._read import Reader
from penstock.table._update import Bits, differing

_NONE = np.zeros(0, np.int64)


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
        return np.unique(np.concatenate([_NONE, *self.updated.values()]))

    def __bool__(self) -> bool:
        columns = self.columns_added or self.columns_dropped or self.columns_renamed
        return bool(len(self.added) or len(self.deleted) or len(self.updated_rows) or columns)


def diff(before: Reader, after: Reader) -> Diff:
    """Compare two versions of one table."""
    old, new = before.snapshot.schema, after.snapshot.schema
    both = [(old.by_id(known.id), known) for known in new if _has(old, known.id)]
    found = _Comparison(before, after, [known for _, known in both])
    return Diff(
        before,
        after,
        added=found.added,
        deleted=found.deleted,
        updated=found.updated,
        columns_added=tuple(known for known in new if not _has(old, known.id)),
        columns_dropped=tuple(known for known in old if not _has(new, known.id)),
        columns_renamed=tuple((a.name, b.name) for a, b in both if a.name != b.name),
    )


class _Comparison:
    """Compares the fragments that two versions do not share."""

    def __init__(self, before: Reader, after: Reader, fields: Sequence[Field]) -> None:
        self._before, self._after, self._fields = before, after, fields
        self._updates: dict[int, list[Rows]] = {known.id: [] for known in fields}
        found = difference(before.tree, before.snapshot.nodes, after.snapshot.nodes)
        pairs = [(found.old[id], found.new[id]) for id in found.old.keys() & found.new.keys()]
        lost, came = [_NONE], [_NONE]
        for old, new in pairs:
            gone, back = old.deleted_rows, new.deleted_rows
            lost.append(old.row_ids_at(np.flatnonzero(~gone & back)))
            came.append(old.row_ids_at(np.flatnonzero(gone & ~back)))
            self._compare(old, new, np.flatnonzero(~gone & ~back))
        one = _Homes([f for id, f in found.old.items() if id not in found.new])
        other = _Homes([f for id, f in found.new.items() if id not in found.old])
        lost.append(one.ids)
        came.append(other.ids)
        self._moved(one, other, pairs, np.intersect1d(np.concatenate(lost), np.concatenate(came)))
        self.added = np.setdiff1d(np.concatenate(came), np.concatenate(lost))
        self.deleted = np.setdiff1d(np.concatenate(lost), np.concatenate(came))
        self.updated = {
            id: np.unique(np.concatenate(parts)) for id, parts in self._updates.items() if any(map(len, parts))
        }

    def _compare(self, old: Fragment, new: Fragment, rows: Rows) -> None:
        """A fragment that both have: its rows are where they were."""
        for known in self._fields:
            changed = self._changed(known, old, new, rows, rows)
            self._updates[known.id].append(new.row_ids_at(changed))

    def _moved(self, one: "_Homes", other: "_Homes", pairs: Sequence[tuple[Fragment, Fragment]], ids: Rows) -> None:
        """Rows that are in another fragment than before."""
        if not len(ids):
            return
        was, now = _Homes([*one.fragments, *(a for a, _ in pairs)]), _Homes([*other.fragments, *(b for _, b in pairs)])
        for new, here, new_rows in now.find(ids):
            for old, there, old_rows in was.find(ids[here]):
                order = np.argsort(new_rows[there])
                mine, its = new_rows[there][order], old_rows[order]
                for known in self._fields:
                    changed = self._changed(known, old, new, its, mine)
                    self._updates[known.id].append(new.row_ids_at(changed))

    def _changed(self, known: Field, old: Fragment, new: Fragment, old_rows: Rows, rows: Rows) -> Rows:
        """Of rows (and where they were), those whose value of a field differs."""
        old_files, new_files = old.files_of(known.id), new.files_of(known.id)
        changed, doubtful = [_NONE], [_NONE]
        for file in new_files:
            inside = (rows >= file.row_start) & (rows < file.row_end)
            for other in old_files or (None,):
                here = inside
                if other is not None:
                    if file.id == other.id:
                        continue
                    here = inside & (old_rows >= other.row_start) & (old_rows < other.row_end)
                if here.any():
                    noted = _noted(file, "" if other is None else other.id, known.id)
                    places = np.flatnonzero(here)
                    if noted is None:
                        doubtful.append(places)
                    else:
                        changed.append(places[noted[rows[places] - file.row_start]])
        if old_files and not new_files:
            doubtful.append(np.arange(len(rows)))
        unsure = np.sort(np.concatenate(doubtful))
        if len(unsure):
            changed.append(unsure[self._differs(known, old, new, old_rows[unsure], rows[unsure])])
        return rows[np.sort(np.concatenate(changed))]

    def _differs(self, known: Field, old: Fragment, new: Fragment, old_rows: Rows, rows: Rows) -> Bits:
        """Read both sides' values of some rows, and compare them."""
        order = np.argsort(old_rows)
        was = _stored(self._before, known, Wanted(old, old_rows[order]))
        now = _stored(self._after, known, Wanted(new, rows))
        return differing(take(was, np.argsort(order)), now)


def _has(schema: Schema, id: int) -> bool:
    return any(known.id == id for known in schema)


class _Homes:
    """Where live rows are, by row id."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.fragments = list(fragments)
        rows = [fragment.live_rows for fragment in self.fragments]
        ids = [fragment.row_ids_at(part) for fragment, part in zip(self.fragments, rows, strict=True)]
        owner = [np.full(len(part), number) for number, part in enumerate(ids)]
        whole = np.concatenate([_NONE, *ids])
        order = np.argsort(whole, kind="stable")
        self.ids = whole[order]
        self._rows = np.concatenate([_NONE, *rows])[order]
        self._owner = np.concatenate([_NONE, *owner])[order]

    def find(self, ids: Rows) -> Iterator[tuple[Fragment, Rows, Rows]]:
        """For ids that are all here: each fragment, which of the ids it has (by place), and their rows in it."""
        at = np.searchsorted(self.ids, ids)
        for number in np.unique(self._owner[at]):
            here = np.flatnonzero(self._owner[at] == number)
            yield self.fragments[number], here, self._rows[at[here]]


def _noted(file: DataFile, base: str, field_id: int) -> Bits | None:
    """The rows of a field that differ from an older file, or from the fill value; None where nothing is noted."""
    notes = [change for change in file.changed if change.base == base]
    if not notes:
        return None
    mine = [unpack_bitmap(change.rows, file.rows) for change in notes if change.field == field_id]
    return mine[0] if mine else np.zeros(file.rows, bool)


def _stored(reader: Reader, known: Field, want: Wanted) -> pa.Array:
    """A column's stored values, with references where values are blobs, as something that can be compared."""
    pages = fetch(reader.store, [want], [known.id], max_workers=4)
    schema = reader.snapshot.schema
    cells = gather(schema, schema.by_id(known.id), [want], pages, parse=True)
    assert cells.array is not None
    array = cells.array.storage if isinstance(cells.array, pa.ExtensionArray) else cells.array
    if cells.references is None:
        return array
    return pa.StructArray.from_arrays([array, cells.references], names=["value", "blob"])
