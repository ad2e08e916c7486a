"""Gather the rows of a span, of one table or of each table of a mixture, and replace bad ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.device import Accelerator, ImageCache, SlabColumns
from penstock.engine._options import BadSamples, DecodeOptions
from penstock.engine._stats import BadSample
from penstock.engine.assembly._collate import Collator
from penstock.engine.assembly._collate_packed import PackedCollator
from penstock.engine.assembly._collate_windows import WindowCollator
from penstock.engine.assembly._columns import PAD, SOURCE, MixedColumns, MixedMemory, Part
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._values import Allocators
from penstock.engine.planning import Layout, RowIdentity, Selection
from penstock.engine.window import BuildTask, TableTask
from penstock.errors import CorruptError, SampleError, text_of
from penstock.plan import PackedSamples, WindowSamples, derive_key, random_u64
from penstock.table import Reader

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


def new_collator(
    reader: Reader,
    layout: Layout,
    options: DecodeOptions,
    accelerator: Accelerator | None = None,
    *,
    images: ImageCache | None = None,
) -> Collator:
    """A collator; `images` are those that windows share."""
    if isinstance(layout.composition, WindowSamples):
        return WindowCollator(reader, layout, options, accelerator, images)
    kind = PackedCollator if isinstance(layout.composition, PackedSamples) else Collator
    return kind(reader, layout, options, accelerator)


class TableRows(NamedTuple):
    """Makes and replaces the rows of a table."""

    collator: Collator
    selection: Selection
    seed: int


class SpanGatherer:
    """Gathers the rows of tasks, and replaces bad ones, each by one that depends only on the row and the epoch."""

    def __init__(
        self, tables: Sequence[TableRows], policy: BadSamples, *, flag: bool, mixed: MixedColumns | None
    ) -> None:
        """`mixed` are the columns of a mixture, None for a single table; with `flag`, rows get a `_pad` column."""
        self._tables, self._policy, self._flag, self._mixed = tables, policy, flag, mixed

    def __call__(self, task: BuildTask, slabs: Sequence[SlabColumns], empty: Allocators) -> GatheredRows:
        """The columns of a task, in the memory that `empty` allocates."""
        if self._mixed is None:
            return self._table_rows(task.tables[0], slabs[0], empty)
        memory = MixedMemory(len(task), empty)
        gathered = GatheredRows({})
        parts: list[Part] = []
        for rows in task.tables:
            indices = np.arange(len(task))[rows.places]
            part = self._table_rows(rows, slabs[rows.table], memory.allocators(indices))
            gathered.bad |= {int(indices[index]): bad for index, bad in part.bad.items()}
            if part.failure is not None:
                place = int(indices[part.failure[0]])
                if gathered.failure is None or place < gathered.failure[0]:
                    gathered.failure = place, part.failure[1]
            parts.append(Part(rows.table, indices, part.columns))
        gathered.columns = self._mixed.join(parts, memory)
        return gathered

    def _table_rows(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> GatheredRows:
        """The rows of one table."""
        collator = self._tables[task.table].collator
        columns, bad = collator.columns(task, slab, empty)
        gathered = GatheredRows(columns)
        if self._flag:
            columns[PAD] = np.zeros(len(task), bool) if task.padding is None else task.padding.copy()
        for index in task.damaged:
            row = task.identity(index)
            try:  # its own page may be intact
                collator.put_row(columns, index, collator.row(row.position))
            except (SampleError, CorruptError) as reason:
                gathered.bad[index] = self.replace(columns, index, row, reason)
        for index, error in sorted(bad.items()):
            if not self._policy.tolerant:
                gathered.failure = index, self._with_location(task.identity(index), error)
                break
            if index not in task.damaged:
                gathered.bad[index] = self.replace(columns, index, task.identity(index), error)
        return gathered

    def replace(self, columns: Columns, index: int, row: RowIdentity, error: Exception, *, first: int = 0) -> BadSample:
        """Replace a bad row and flag it, or raise its error.

        The columns are those of its table, or of a batch; `first` counts the replacements tried before.
        """
        if not self._policy.tolerant:
            raise self._with_location(row, error)
        collator, selection, seed = self._tables[row.table]
        row_id, selection = collator.row_id(row.position), selection.at(row.epoch)
        key = derive_key(seed, row.epoch, row_id)
        picks = random_u64(key, np.arange(first, _MAX_ATTEMPTS)) % np.uint64(len(selection))
        for position in selection.positions(picks.astype(np.int64)).tolist():
            try:
                replacement = collator.row(position)
            except (SampleError, CorruptError):
                continue
            if self._mixed is not None and SOURCE in columns:
                replacement = self._mixed.completed(row.table, replacement, 1)
            collator.put_row(columns, index, replacement | {PAD: np.ones(1, bool)})
            return BadSample(row_id, row.epoch, text_of(error), self._source(row))
        raise SampleError(
            f"row id {row_id} is bad, and so is every other row tried in its place; the first reason: " + text_of(error)
        )

    def _with_location(self, row: RowIdentity, error: Exception) -> Exception:
        """The error with a note that names its row."""
        source, row_id = self._source(row), self._tables[row.table].collator.row_id(row.position)
        table = "the table" if source is None else f"source {source!r}"
        error.add_note(f"in row {row.position} of {table} (row id {row_id})")
        return error

    def _source(self, row: RowIdentity) -> str | None:
        """The name of a row's source in a mixture."""
        return None if self._mixed is None else self._mixed.sources[row.table]
