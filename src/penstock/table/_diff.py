"""The difference of two versions: rows by row id, columns by field id, values read on demand.

An update records which values it changed, so fragments that both versions have need no reads. Values are compared only
where nothing is recorded, as after very many updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.format import DataFile, Field, Fragment, unpack_bitmap
from penstock.history import Difference, difference
from penstock.table._gather import gather, take
from penstock.table._pages import FragmentRows, Int64Array, fetch_pages
from penstock.table._quarantine import read_quarantine
from penstock.table._read import Reader
from penstock.table._update import Mask, values_differ
from penstock.types import cached_property

_EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Diff:
    """The difference of two versions; `before` and `after` read their values."""

    before: Reader
    after: Reader
    fragments: Difference
    """The fragments that the versions do not share."""
    appended: tuple[Fragment, ...]
    """Fragments whose rows are all new: an append of any size is compared without looking at its rows."""
    other_added: Int64Array
    """Row ids that only the new version has, in other fragments."""
    deleted: Int64Array
    """Row ids that only the old version has."""
    updated: Mapping[int, Int64Array]
    """By field id: the row ids whose value differs; only columns that both versions have."""
    columns_added: tuple[Field, ...] = ()
    columns_dropped: tuple[Field, ...] = ()
    columns_renamed: tuple[tuple[str, str], ...] = field(default=())

    @cached_property
    def added(self) -> Int64Array:
        """Row ids that only the new version has."""
        return np.union1d(self.other_added, _RowIndex(self.appended).ids)

    @property
    def num_added(self) -> int:
        return sum(fragment.live for fragment in self.appended) + len(self.other_added)

    @property
    def updated_rows(self) -> Int64Array:
        """Ids of rows with any value that differs."""
        return np.unique(np.concatenate([_EMPTY, *self.updated.values()]))

    @cached_property
    def quarantined(self) -> Int64Array:
        """Row ids that only the new version's quarantine list has."""
        return _newly_listed(self.before, self.after)

    @cached_property
    def released(self) -> Int64Array:
        """Row ids that only the old version's quarantine list has."""
        return _newly_listed(self.after, self.before)

    def __bool__(self) -> bool:
        columns = self.columns_added or self.columns_dropped or self.columns_renamed
        rows = self.num_added or len(self.deleted) or len(self.updated_rows)
        return bool(rows or columns or len(self.quarantined) or len(self.released))


def diff(before: Reader, after: Reader) -> Diff:
    """Compare two versions of one table."""
    old, new = before.snapshot.schema, after.snapshot.schema
    common = [(old.by_id(known.id), known) for known in new if old.has_id(known.id)]
    found = _Comparison(before, after, [known for _, known in common])
    return Diff(
        before,
        after,
        fragments=found.fragments,
        appended=found.appended,
        other_added=found.added,
        deleted=found.deleted,
        updated=found.updated,
        columns_added=tuple(known for known in new if not old.has_id(known.id)),
        columns_dropped=tuple(known for known in old if not new.has_id(known.id)),
        columns_renamed=tuple((a.name, b.name) for a, b in common if a.name != b.name),
    )


class _Comparison:
    """Compares the fragments that two versions do not share."""

    def __init__(self, before: Reader, after: Reader, fields: Sequence[Field]) -> None:
        self._before, self._after, self._fields = before, after, fields
        self._updates: dict[int, list[Int64Array]] = {known.id: [] for known in fields}
        found = difference(before.tree, before.snapshot.nodes, after.snapshot.nodes)
        self.fragments, self.appended = found, _find_appended(found)
        appended = {fragment.id for fragment in self.appended}
        pairs = [(found.old[id], found.new[id]) for id in found.old.keys() & found.new.keys()]
        removed, added = [_EMPTY], [_EMPTY]
        for old, new in pairs:
            old_deleted, new_deleted = old.deleted_rows, new.deleted_rows
            removed.append(old.row_ids_at(np.flatnonzero(~old_deleted & new_deleted)))
            added.append(old.row_ids_at(np.flatnonzero(old_deleted & ~new_deleted)))
            rows = np.flatnonzero(~old_deleted & ~new_deleted)
            self._compare(old, new, rows, rows)
        old_only = _RowIndex([f for id, f in found.old.items() if id not in found.new])
        new_only = _RowIndex([f for id, f in found.new.items() if id not in found.old and id not in appended])
        removed.append(old_only.ids)
        added.append(new_only.ids)
        removed_ids, added_ids = np.concatenate(removed), np.concatenate(added)
        moved = np.intersect1d(removed_ids, added_ids)
        if len(moved):
            self._compare_moved(
                moved,
                _RowIndex([*old_only.fragments, *(old for old, _ in pairs)]),
                _RowIndex([*new_only.fragments, *(new for _, new in pairs)]),
            )
        self.added = np.setdiff1d(added_ids, removed_ids)
        self.deleted = np.setdiff1d(removed_ids, added_ids)
        self.updated = {
            id: np.unique(np.concatenate(parts)) for id, parts in self._updates.items() if any(map(len, parts))
        }

    def _compare(self, old: Fragment, new: Fragment, old_rows: Int64Array, rows: Int64Array) -> None:
        """Compare all fields of rows of the new fragment with their rows of the old one."""
        for known in self._fields:
            changed = self._changed_rows(known, old, new, old_rows, rows)
            self._updates[known.id].append(new.row_ids_at(changed))

    def _compare_moved(self, ids: Int64Array, before: "_RowIndex", after: "_RowIndex") -> None:
        """Compare rows that are in another fragment than before."""
        for new, in_new, new_rows in after.find(ids):
            for old, in_old, old_rows in before.find(ids[in_new]):
                order = np.argsort(new_rows[in_old])
                self._compare(old, new, old_rows[order], new_rows[in_old][order])

    def _changed_rows(
        self, known: Field, old: Fragment, new: Fragment, old_rows: Int64Array, rows: Int64Array
    ) -> Int64Array:
        """The subset of `rows` whose value of a field differs."""
        old_files, new_files = old.files_of(known.id), new.files_of(known.id)
        changed, unknown = [_EMPTY], [_EMPTY]
        for file in new_files:
            inside = (rows >= file.row_start) & (rows < file.row_end)
            for old_file in old_files or (None,):
                shared = inside
                if old_file is not None:
                    if file.id == old_file.id:
                        continue
                    shared = inside & (old_rows >= old_file.row_start) & (old_rows < old_file.row_end)
                if shared.any():
                    recorded = _recorded_changes(file, "" if old_file is None else old_file.id, known.id)
                    indices = np.flatnonzero(shared)
                    if recorded is None:
                        unknown.append(indices)
                    else:
                        changed.append(indices[recorded[rows[indices] - file.row_start]])
        if old_files and not new_files:
            unknown.append(np.arange(len(rows)))
        to_read = np.sort(np.concatenate(unknown))
        if len(to_read):
            changed.append(to_read[self._read_and_compare(known, old, new, old_rows[to_read], rows[to_read])])
        return rows[np.sort(np.concatenate(changed))]

    def _read_and_compare(
        self, known: Field, old: Fragment, new: Fragment, old_rows: Int64Array, rows: Int64Array
    ) -> Mask:
        order = np.argsort(old_rows)
        before = _read_comparable(self._before, known, FragmentRows(old, old_rows[order]))
        after = _read_comparable(self._after, known, FragmentRows(new, rows))
        return values_differ(take(before, np.argsort(order)), after)


def _newly_listed(before: Reader, after: Reader) -> Int64Array:
    if before.snapshot.quarantine == after.snapshot.quarantine:
        return _EMPTY
    return np.array(sorted(read_quarantine(after).keys() - read_quarantine(before).keys()), np.int64)


def _find_appended(found: Difference) -> tuple[Fragment, ...]:
    """The new fragments without any row of an old one, by ranges of row ids."""
    runs = sorted((run.start, run.end) for fragment in found.old.values() for run in fragment.row_ids)
    starts = np.array([start for start, _ in runs], np.int64)
    ends = np.maximum.accumulate(np.array([0, *(end for _, end in runs)], np.int64))
    return tuple(
        fragment
        for id, fragment in found.new.items()
        if id not in found.old and all(ends[np.searchsorted(starts, run.end)] <= run.start for run in fragment.row_ids)
    )


class _RowIndex:
    """Locates live rows of some fragments by row id."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.fragments = list(fragments)
        rows = [fragment.live_rows for fragment in self.fragments]
        ids = [fragment.row_ids_at(part) for fragment, part in zip(self.fragments, rows, strict=True)]
        owners = [np.full(len(part), index) for index, part in enumerate(ids)]
        all_ids = np.concatenate([_EMPTY, *ids])
        order = np.argsort(all_ids, kind="stable")
        self.ids = all_ids[order]
        self._rows = np.concatenate([_EMPTY, *rows])[order]
        self._owners = np.concatenate([_EMPTY, *owners])[order]

    def find(self, ids: Int64Array) -> Iterator[tuple[Fragment, Int64Array, Int64Array]]:
        """For ids that are all in the index: each fragment, the indices of the ids it has, and their rows in it."""
        at = np.searchsorted(self.ids, ids)
        for owner in np.unique(self._owners[at]):
            indices = np.flatnonzero(self._owners[at] == owner)
            yield self.fragments[owner], indices, self._rows[at[indices]]


def _recorded_changes(file: DataFile, base: str, field_id: int) -> Mask | None:
    """The rows of a field that differ from a base file, or from the fill value; None if nothing is recorded."""
    changes = file.changes_since.get(base)
    if changes is None:
        return None
    change = changes.get(field_id)
    return np.zeros(file.rows, bool) if change is None else unpack_bitmap(change.rows, file.rows)


def _read_comparable(reader: Reader, known: Field, selected: FragmentRows) -> pa.Array:
    """A column's stored values in a form that can be compared; blobs by reference."""
    pages = fetch_pages(reader.store, [selected], [known.id], max_workers=4)
    schema = reader.snapshot.schema
    raw = gather(schema, schema.by_id(known.id), [selected], pages, as_arrow=True)
    assert raw.array is not None
    array = raw.array.storage if isinstance(raw.array, pa.ExtensionArray) else raw.array
    if raw.references is None:
        return array
    return pa.StructArray.from_arrays([array, raw.references], names=["value", "blob"])
