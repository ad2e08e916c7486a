"""Gather the rows of a span, and replace bad ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.device import Accelerator
from penstock.engine._options import BadSamples
from penstock.engine._stats import BadSample
from penstock.engine.assembly._collate import Collator, put_row
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._mixed_columns import MixedRows
from penstock.engine.assembly._values import Allocators
from penstock.engine.planning import RowIdentity, Selection
from penstock.engine.window import SlabColumns, TableTask
from penstock.errors import CorruptError, SampleError, text_of
from penstock.plan import derive_key, random_u64

PAD = "_pad"
"""Name of the column that flags repeated rows of the last step and replacements of bad rows."""

_MAX_ATTEMPTS = 64


@dataclass(slots=True)
class GatheredRows:
    """The columns of some rows."""

    columns: Columns
    bad: dict[int, BadSample] = field(default_factory=dict)
    """The rows that were replaced."""
    failure: tuple[int, Exception] | None = None
    """The first row that could not be decoded, and its error; None if rows are replaced."""


class BadRowsError(Exception):
    """Rows of a batch that could not be transformed."""

    def __init__(self, failures: Mapping[int, Exception]) -> None:
        super().__init__(failures)
        self.failures = failures


class RowReplacer:
    """Replaces bad rows, each by one that depends only on the row and the epoch."""

    def __init__(
        self,
        collator: Collator,
        selection: Selection,
        policy: BadSamples,
        accelerator: Accelerator | None,
        *,
        seed: int,
        flag: bool,
        mixed: MixedRows | None = None,
    ) -> None:
        """A table of a mixture has other columns there, see `MixedRows`."""
        self._collator, self._selection, self.policy, self._accelerator = collator, selection, policy, accelerator
        self._seed, self._flag, self._mixed = seed, flag, mixed

    def repair(self, gathered: GatheredRows, index: int, row: RowIdentity, flags: Any) -> None:
        """Read a row of a damaged block by itself, because its own page may be intact; replace it if not."""
        try:
            put_row(gathered.columns, index, self._collator.row(row.position), self._accelerator)
        except (SampleError, CorruptError) as reason:
            self.replace(gathered, index, row, reason, flags)

    def replace(
        self,
        gathered: GatheredRows,
        index: int,
        row: RowIdentity,
        error: Exception,
        flags: Any,
        *,
        start: int = 0,
        first: int = 0,
    ) -> None:
        """Replace a bad row and flag it, or raise its error.

        The columns start at row `start` of those in `gathered.bad`; `first` counts the replacements tried before.
        """
        if not self.policy.tolerant:
            raise self.with_location(row, error)
        row_id, epoch = self._collator.row_id(row.position), row.epoch
        name = None if self._mixed is None else self._mixed.name
        gathered.bad.setdefault(index, BadSample(row_id, epoch, text_of(error), name))
        key = derive_key(self._seed, epoch, row_id)
        selection = self._selection.at(epoch)
        picks = random_u64(key, np.arange(first, _MAX_ATTEMPTS)) % np.uint64(len(selection))
        for position in selection.positions(picks.astype(np.int64)).tolist():
            try:
                put_row(gathered.columns, index - start, self._row(position), self._accelerator)
            except (SampleError, CorruptError):
                continue
            flags[index - start] = True
            return
        raise SampleError(
            f"row id {row_id} is bad, and so is every other row tried in its place; the first reason: " + text_of(error)
        )

    def with_location(self, row: RowIdentity, error: Exception) -> Exception:
        """The error with a note that names its row."""
        table = "the table" if self._mixed is None else f"source {self._mixed.name!r}"
        error.add_note(f"in row {row.position} of {table} (row id {self._collator.row_id(row.position)})")
        return error

    def _row(self, position: int) -> Columns:
        row = self._collator.row(position)
        if self._mixed is not None:
            row = self._mixed.complete(row)
        if self._flag:
            row[PAD] = np.ones(1, bool)
        return row


class RowGatherer:
    """Gathers rows of one table from the window."""

    def __init__(self, collator: Collator, replacer: RowReplacer, *, flag: bool) -> None:
        self._collator, self._replacer, self._flag = collator, replacer, flag

    def __call__(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> GatheredRows:
        """The columns of the rows, in the memory that `empty` allocates."""
        columns, bad = self._collator.columns(task, slab, empty)
        gathered = GatheredRows(columns)
        flags = np.zeros(len(task), bool) if task.padding is None else task.padding.copy()
        for index in task.damaged:
            self._replacer.repair(gathered, index, task.identity(index), flags)
        for index, error in sorted(bad.items()):
            if not self._replacer.policy.tolerant:
                gathered.failure = index, self._replacer.with_location(task.identity(index), error)
                break
            if index not in task.damaged:
                self._replacer.replace(gathered, index, task.identity(index), error, flags)
        if self._flag:
            columns[PAD] = flags
        return gathered
