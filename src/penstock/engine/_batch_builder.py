"""Build the batches of a span: gather, replace bad rows, apply the user's transform."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator
from penstock.engine._blocks import Span
from penstock.engine._collate import Collator, put_row, split
from penstock.engine._decode import Columns
from penstock.engine._options import BadSamples
from penstock.engine._selection import Selection
from penstock.engine._slab import Slab
from penstock.engine._stats import BadSample, StatsCollector
from penstock.errors import CorruptError, SampleError
from penstock.plan import derive_key, random_u64
from penstock.table import Int64Array

PAD = "_pad"
"""Name of the column that flags repeated rows of the last step and replacements of bad rows."""

_MAX_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys of a batch's random numbers: they depend on nothing else."""

    seed: int
    epoch: int
    row_ids: Int64Array

    def generator(self, index: int) -> np.random.Generator:
        """A generator for one row, the same wherever and whenever the row is transformed."""
        return np.random.Generator(np.random.Philox(derive_key(self.seed, self.epoch, int(self.row_ids[index]))))

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """`count` random numbers in [0, 1) for each row, as reproducible, for all rows at once."""
        key = derive_key(self.seed, self.epoch, count)
        drawn = random_u64(key, self.row_ids[:, None] * count + np.arange(count))
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


class BatchFormatter(Protocol):
    """Turns columns into the batch that the user's loop gets."""

    @property
    def needs_keys(self) -> bool:
        """Whether it needs `RowKeys`."""

    @property
    def by_rows(self) -> bool:
        """Whether it calls a function for each row, so that batches are built one at a time."""

    @property
    def on_host(self) -> bool:
        """Whether it reads column values, so that they must be in host memory."""

    in_worker_process: bool
    """Whether it runs in a worker process of its own, and may seed global random generators."""

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """One batch; raises `BadRowsError` for rows that cannot be transformed."""

    def format_many(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:
        """All batches of a span at once; None if it has to see them one by one."""

    def to_transport(self, value: Any) -> Any:
        """A batch with numpy arrays in place of a framework's, for transport to another process."""

    def from_transport(self, value: Any) -> Any:
        """Inverse of `to_transport`."""


class Placement(Protocol):
    """Transfers batches to a device."""

    accelerator: Accelerator
    needs_keys: bool

    def place(self, batch: Any, keys: RowKeys | None) -> Any:
        """Start the transfer of a batch, in a builder's thread."""

    def place_many(self, columns: Columns, keys: RowKeys | None, batch_rows: Sequence[int]) -> list[Any] | None:
        """The same for all batches of a span at once; None if it cannot."""

    def make_ready(self, batch: Any) -> Any:
        """The batch for the loop, in the loop's thread."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of a batch, after the batches that succeeded."""

    error: Exception


class BadRowsError(Exception):
    """Rows of a batch that could not be transformed, or (`undecodable`) not decoded."""

    def __init__(self, failures: Mapping[int, Exception], *, undecodable: bool = False) -> None:
        super().__init__(failures)
        self.failures, self.undecodable = failures, undecodable


class BatchBuilder:
    """Builds the batches of spans; one per thread."""

    def __init__(
        self,
        collator: Collator,
        slab: Slab,
        formatter: BatchFormatter,
        placement: Placement | None,
        policy: BadSamples,
        collector: StatsCollector,
        *,
        selection: Selection,
        seed: int,
        flag: bool,
    ) -> None:
        self._slab, self._selection = slab, selection
        self._collator, self._formatter, self._policy, self._collector = collator, formatter, policy, collector
        self._placement, self._accelerator = placement, None if placement is None else placement.accelerator
        self._needs_keys = formatter.needs_keys or (placement is not None and placement.needs_keys)
        self._seed, self._flag = seed, flag

    def __call__(self, span: Span) -> list[Any]:
        """The batches of a span; an error after the first batch is a `Failure`, which is then the last item."""
        columns, bad = self._collator.columns(span, self._slab)
        replaced = np.zeros(len(span.block_index), bool) if span.padding is None else span.padding.copy()
        damaged_blocks = [number for number, block in enumerate(span.blocks) if block.error is not None]
        damaged = set(np.flatnonzero(np.isin(span.block_index, damaged_blocks)).tolist()) if damaged_blocks else set()
        for index in damaged:
            self._repair_row(span, columns, index, replaced)
        first_bad = len(span.block_index)
        for index, error in bad.items():
            if not self._policy.tolerant:
                first_bad = min(first_bad, index)
            elif index not in damaged:
                self._replace_row(span, columns, index, error, replaced)
        if self._flag:
            columns[PAD] = replaced
        ids = span.row_ids if self._needs_keys else None
        if not self._formatter.on_host and first_bad == len(span.block_index):
            with self._collector.timed("transform", "busy"):
                made = self._format_span(columns, None if ids is None else RowKeys(self._seed, span.epoch, ids), span)
            if made is not None:
                return made
        batches: list[Any] = []
        start = 0
        for batch, rows in zip(split(columns, span.batch_rows), span.batch_rows, strict=True):
            keys = None if ids is None else RowKeys(self._seed, span.epoch, ids[start : start + rows])
            try:
                if first_bad < start + rows:
                    raise self._with_location(span, first_bad, bad[first_bad])
                batches.append(self._format_batch(span, start, batch, keys))
            except Exception as error:
                if not batches:
                    raise
                return [*batches, Failure(error)]
            start += rows
        return batches

    def _format_span(self, columns: Columns, keys: RowKeys | None, span: Span) -> list[Any] | None:
        """All batches at once, if nothing has to see them in host memory; None otherwise."""
        if self._placement is None:
            return self._formatter.format_many(columns, span.batch_rows)
        return self._placement.place_many(columns, keys, span.batch_rows)

    def _format_batch(self, span: Span, start: int, batch: Columns, keys: RowKeys | None) -> Any:
        tries = 0
        while True:
            try:
                with self._collector.timed("transform", "busy"):
                    finished = self._formatter(batch, keys if self._formatter.needs_keys else None)
                    return finished if self._placement is None else self._placement.place(finished, keys)
            except BadRowsError as bad:
                tries += not bad.undecodable
                flags = np.asarray(batch[PAD]) if self._flag else np.zeros(len(next(iter(batch.values()))), bool)
                for index, error in sorted(bad.failures.items()):
                    self._replace_row(span, batch, start + index, error, flags, at=index, first=tries)

    def _repair_row(self, span: Span, columns: Columns, index: int, replaced: Any) -> None:
        """Read a row of a damaged block by itself, because its own page may be intact; replace it if not."""
        try:
            put_row(columns, index, self._collator.row(span.position(index)), self._accelerator)
        except (SampleError, CorruptError) as reason:
            self._replace_row(span, columns, index, reason, replaced)

    def _replace_row(
        self,
        span: Span,
        columns: Columns,
        index: int,
        error: Exception,
        replaced: Any,
        *,
        at: int | None = None,
        first: int = 0,
    ) -> None:
        """Replace a bad row by one that depends only on the row and the epoch, or raise its error."""
        if not self._policy.tolerant:
            raise self._with_location(span, index, error)
        row_id = int(span.row_ids[index])
        if all(row != index for row, _ in span.bad):
            span.bad.append((index, BadSample(row_id, span.epoch, str(error))))
        key = derive_key(self._seed, span.epoch, row_id)
        picks = random_u64(key, np.arange(first, _MAX_ATTEMPTS)) % np.uint64(len(self._selection))
        for position in self._selection.positions(picks.astype(np.int64)).tolist():
            try:
                put_row(columns, index if at is None else at, self._row(position), self._accelerator)
            except (SampleError, CorruptError):
                continue
            replaced[index if at is None else at] = True
            return
        raise SampleError(
            f"row id {row_id} is bad, and so is every other row tried in its place; the first reason: {error}"
        )

    def _with_location(self, span: Span, index: int, error: Exception) -> Exception:
        error.add_note(f"in row {span.position(index)} of the table (row id {int(span.row_ids[index])})")
        return error

    def _row(self, position: int) -> Columns:
        row = self._collator.row(position)
        if self._flag:
            row[PAD] = np.ones(1, bool)
        return row
