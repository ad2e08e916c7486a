"""Gather the rows of a span, of one table or of each table of a mixture, and replace bad ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.device import Accelerator, ImageCache, SlabColumns
from penstock.engine._options import BadSamples, DecodeOptions
from penstock.engine._stats import BadSample
from penstock.engine.assembly._collate import Collator, put_row
from penstock.engine.assembly._collate_packed import PackedCollator
from penstock.engine.assembly._collate_windows import WindowCollator
from penstock.engine.assembly._columns import PAD, SOURCE, MixedColumns, MixedMemory, Part
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._values import Allocators
from penstock.engine.planning import Layout, PackedSamples, RowIdentity, Selection, WindowSamples
from penstock.engine.window import BuildTask, TableTask
from penstock.errors import CorruptError, SampleError, text_of
from penstock.plan import derive_key, random_u64
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
        return WindowCollator(reader, layout, options, accelerator, layout.composition, images)
    if isinstance(layout.composition, PackedSamples):
        return PackedCollator(reader, layout, options, layout.composition)
    return Collator(reader, layout, options, accelerator)


class RowGatherer:
    """Gathers rows of one table, and replaces bad ones, each by one that depends only on the row and the epoch."""

    def __init__(
        self,
        collator: Collator,
        selection: Selection,
        policy: BadSamples,
        accelerator: Accelerator | None,
        *,
        table: int,
        seed: int,
        flag: bool,
        mixed: MixedColumns | None,
    ) -> None:
        """`mixed` are the columns of the mixture that the table belongs to; with `flag`, rows get a `_pad` column."""
        self._collator, self._selection, self._policy, self._accelerator = collator, selection, policy, accelerator
        self._table, self._seed, self._flag, self._mixed = table, seed, flag, mixed
        self._name = None if mixed is None else mixed.sources[table]

    def __call__(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> GatheredRows:
        """The columns of the rows, in the memory that `empty` allocates."""
        columns, bad = self._collator.columns(task, slab, empty)
        gathered = GatheredRows(columns)
        flags = np.zeros(len(task), bool) if task.padding is None else task.padding.copy()
        for index in task.damaged:
            self._repair(gathered, index, task.identity(index), flags)
        for index, error in sorted(bad.items()):
            if not self._policy.tolerant:
                gathered.failure = index, self._with_location(task.identity(index), error)
                break
            if index not in task.damaged:
                self.replace(gathered, index, task.identity(index), error, flags)
        if self._flag:
            columns[PAD] = flags
        return gathered

    def _repair(self, gathered: GatheredRows, index: int, row: RowIdentity, flags: Any) -> None:
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

        The columns, of this table or of a batch, start at row `start` of those in `gathered.bad`; `first` counts the
        replacements tried before.
        """
        if not self._policy.tolerant:
            raise self._with_location(row, error)
        row_id, epoch = self._collator.row_id(row.position), row.epoch
        gathered.bad.setdefault(index, BadSample(row_id, epoch, text_of(error), self._name))
        key = derive_key(self._seed, epoch, row_id)
        selection = self._selection.at(epoch)
        picks = random_u64(key, np.arange(first, _MAX_ATTEMPTS)) % np.uint64(len(selection))
        for position in selection.positions(picks.astype(np.int64)).tolist():
            try:
                put_row(gathered.columns, index - start, self._row(position, gathered.columns), self._accelerator)
            except (SampleError, CorruptError):
                continue
            flags[index - start] = True
            return
        raise SampleError(
            f"row id {row_id} is bad, and so is every other row tried in its place; the first reason: " + text_of(error)
        )

    def _with_location(self, row: RowIdentity, error: Exception) -> Exception:
        """The error with a note that names its row."""
        table = "the table" if self._name is None else f"source {self._name!r}"
        error.add_note(f"in row {row.position} of {table} (row id {self._collator.row_id(row.position)})")
        return error

    def _row(self, position: int, columns: Columns) -> Columns:
        """A row to put into some columns: those of the table, or of a batch."""
        row = self._collator.row(position)
        if self._mixed is not None and SOURCE in columns:
            row = self._mixed.row(self._table, row)
        if PAD in columns:
            row[PAD] = np.ones(1, bool)
        return row


class SpanGatherer:
    """Gathers the rows of tasks, of a table or of a mixture."""

    def __init__(
        self, gatherers: Sequence[RowGatherer], slabs: Sequence[SlabColumns], mixed: MixedColumns | None
    ) -> None:
        """`mixed` are the columns of a mixture; None for a single table."""
        self._gatherers, self._slabs, self._mixed = gatherers, slabs, mixed

    def __call__(self, task: BuildTask, empty: Allocators) -> GatheredRows:
        """The columns of a task, in the memory that `empty` allocates."""
        if self._mixed is None:
            return self._gatherers[0](task.tables[0], self._slabs[0], empty)
        memory = MixedMemory(len(task), empty)
        gathered = GatheredRows({})
        parts: list[Part] = []
        for rows in task.tables:
            indices = np.arange(len(task))[rows.places]
            part = self._gatherers[rows.table](rows, self._slabs[rows.table], memory.allocators(indices))
            gathered.bad |= {int(indices[index]): bad for index, bad in part.bad.items()}
            if part.failure is not None:
                place = int(indices[part.failure[0]])
                if gathered.failure is None or place < gathered.failure[0]:
                    gathered.failure = place, part.failure[1]
            parts.append(Part(rows.table, indices, part.columns))
        gathered.columns = self._mixed.join(parts, memory)
        return gathered
