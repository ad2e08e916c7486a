"""Gather the rows of a span, and replace bad ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.device import Accelerator
from penstock.engine._options import BadSamples
from penstock.engine._stats import BadSample
from penstock.engine.assembly._collate import Allocators, Collator, put_row
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._mixed_columns import MixedRows
from penstock.engine.planning import RowIdentity, Selection, Span
from penstock.engine.window import Window
from penstock.errors import CorruptError, SampleError, text_of
from penstock.plan import SpanSteps, derive_key, random_u64
from penstock.table import Int64Array

PAD = "_pad"
"""Name of the column that flags repeated rows of the last step and replacements of bad rows."""

_MAX_ATTEMPTS = 64


class RowSource(Protocol):
    """Which rows of the table some rows of a batch are."""

    @property
    def steps(self) -> SpanSteps: ...

    @property
    def epoch(self) -> int: ...

    @property
    def row_ids(self) -> Int64Array:
        """What random numbers depend on, besides the seed and the epoch."""

    def identity(self, index: int) -> RowIdentity:
        """Which row of which table a row is."""


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

    def repair(self, rows: RowSource, gathered: GatheredRows, index: int, flags: Any) -> None:
        """Read a row of a damaged block by itself, because its own page may be intact; replace it if not."""
        try:
            put_row(gathered.columns, index, self._collator.row(rows.identity(index).position), self._accelerator)
        except (SampleError, CorruptError) as reason:
            self.replace(rows, gathered, index, reason, flags)

    def replace(
        self,
        rows: RowSource,
        gathered: GatheredRows,
        index: int,
        error: Exception,
        flags: Any,
        *,
        start: int = 0,
        first: int = 0,
    ) -> None:
        """Replace a bad row and flag it, or raise its error.

        The columns start at row `start` of the rows; `first` counts the replacements tried before.
        """
        if not self.policy.tolerant:
            raise self.with_location(rows, index, error)
        _, _, row_id, epoch = rows.identity(index)
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

    def with_location(self, rows: RowSource, index: int, error: Exception) -> Exception:
        """The error with a note that names its row."""
        row = rows.identity(index)
        table = "the table" if self._mixed is None else f"source {self._mixed.name!r}"
        error.add_note(f"in row {row.position} of {table} (row id {row.row_id})")
        return error

    def _row(self, position: int) -> Columns:
        row = self._collator.row(position)
        if self._mixed is not None:
            row = self._mixed.complete(row)
        if self._flag:
            row[PAD] = np.ones(1, bool)
        return row


class RowGatherer:
    """Gathers the rows of spans from the window."""

    def __init__(self, collator: Collator, window: Window, replacer: RowReplacer, *, flag: bool) -> None:
        self._collator, self._window, self._replacer, self._flag = collator, window, replacer, flag

    def __call__(self, span: Span, empty: Allocators) -> GatheredRows:
        """The columns of a span, in the memory that `empty` allocates."""
        columns, bad = self._collator.columns(span, self._window, empty)
        gathered = GatheredRows(columns)
        flags = np.zeros(len(span), bool) if span.padding is None else span.padding.copy()
        damaged_blocks = self._window.damaged(span)
        damaged = _samples_in(span, damaged_blocks) if damaged_blocks else set()
        for index in damaged:
            self._replacer.repair(span, gathered, index, flags)
        for index, error in sorted(bad.items()):
            if not self._replacer.policy.tolerant:
                gathered.failure = index, self._replacer.with_location(span, index, error)
                break
            if index not in damaged:
                self._replacer.replace(span, gathered, index, error, flags)
        if self._flag:
            columns[PAD] = flags
        return gathered


def _samples_in(span: Span, blocks: Sequence[int]) -> set[int]:
    """The rows, or composed samples, of a span that need one of some blocks."""
    found = np.flatnonzero(np.isin(span.block_index, blocks))
    if span.samples is not None:
        found = np.searchsorted(span.samples.offsets, found, side="right") - 1
    return set(found.tolist())
