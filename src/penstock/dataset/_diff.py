"""The difference of two versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.dataset._view import View
from penstock.format import Commit
from penstock.table import Diff, Int64Array, Reader


@dataclass(frozen=True)
class TableDiff:
    """What changed from one version to another; print it, or read the changed rows."""

    old_version: str
    new_version: str
    _diff: Diff

    @property
    def old_commit(self) -> Commit:
        """The commit of the old version."""
        return self._diff.before.commit

    @property
    def new_commit(self) -> Commit:
        """The commit of the new version, or the one that uncommitted changes are based on."""
        return self._diff.after.commit

    @property
    def added(self) -> View:
        """Rows that only the new version has."""
        return _view(self._diff.after, self._diff.added)

    @property
    def deleted(self) -> View:
        """Rows that only the old version has."""
        return _view(self._diff.before, self._diff.deleted)

    @property
    def updated(self) -> Mapping[str, Int64Array]:
        """Ids of the rows whose value differs, by column name in the new version."""
        schema = self._diff.after.snapshot.schema
        return {schema.by_id(id).name: ids for id, ids in self._diff.updated.items()}

    @property
    def updated_rows(self) -> Int64Array:
        """Ids of the rows in which any value differs."""
        return self._diff.updated_rows

    @property
    def quarantined(self) -> Int64Array:
        """Ids of the rows that loaders leave out since."""
        return self._diff.quarantined

    @property
    def released(self) -> Int64Array:
        """Ids of the rows that were released from quarantine."""
        return self._diff.released

    def before(self, *, row_ids: Sequence[int] | Int64Array) -> View:
        """Rows by row id, at the old version."""
        return _view(self._diff.before, np.asarray(row_ids, np.int64))

    def after(self, *, row_ids: Sequence[int] | Int64Array) -> View:
        """Rows by row id, at the new version."""
        return _view(self._diff.after, np.asarray(row_ids, np.int64))

    @property
    def columns_added(self) -> list[str]:
        """Columns that only the new version has."""
        return [field.name for field in self._diff.columns_added]

    @property
    def columns_dropped(self) -> list[str]:
        """Columns that only the old version has."""
        return [field.name for field in self._diff.columns_dropped]

    @property
    def columns_renamed(self) -> list[tuple[str, str]]:
        """Old and new names of renamed columns."""
        return list(self._diff.columns_renamed)

    def __bool__(self) -> bool:
        return bool(self._diff)

    def to_json(self) -> dict[str, Any]:
        """Counts and names as a JSON value, without the values."""
        return {
            "old": self.old_version,
            "new": self.new_version,
            "rows_added": len(self._diff.added),
            "rows_deleted": len(self._diff.deleted),
            "rows_updated": len(self.updated_rows),
            "rows_quarantined": len(self.quarantined),
            "rows_released": len(self.released),
            "updated": {name: len(ids) for name, ids in self.updated.items()},
            "columns_added": self.columns_added,
            "columns_dropped": self.columns_dropped,
            "columns_renamed": [list(pair) for pair in self.columns_renamed],
        }

    def __str__(self) -> str:
        rows = (
            f"{len(self._diff.added):,} added, {len(self._diff.deleted):,} deleted, {len(self.updated_rows):,} updated"
        )
        lines = [f"{self.old_version} -> {self.new_version}: rows {rows}"]
        lines += [f"  {name}: {len(ids):,} values changed" for name, ids in self.updated.items()]
        for ids, what in ((self.quarantined, "quarantined"), (self.released, "released")):
            lines += [f"  {len(ids):,} rows {what}"] if len(ids) else []
        lines += [f"  + column {name}" for name in self.columns_added]
        lines += [f"  - column {name}" for name in self.columns_dropped]
        lines += [f"  column {old} renamed to {new}" for old, new in self.columns_renamed]
        return "\n".join(lines)


def _view(reader: Reader, ids: Int64Array) -> View:
    return View(reader, reader.snapshot.schema.names, range(reader.snapshot.live)).rows(row_ids=ids)
