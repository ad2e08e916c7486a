"""Build the batches of a span: apply the user's functions, and transfer batches to a device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock.device import Accelerator
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly._collate import split
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._formatter import BatchFormatter, RowKeys
from penstock.engine.assembly._rows import BadRowsError, GatheredRows, SpanGatherer
from penstock.engine.window import BuildTask
from penstock.plan import SpanSteps
from penstock.table import Int64Array


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


class BuiltBatches(NamedTuple):
    """The batches of a span."""

    batches: list[Any]
    """A `Failure` is the last item."""
    bad: dict[int, BadSample]
    """Rows of the span that were replaced."""


class BatchAssembler:
    """Makes batches of gathered rows."""

    def __init__(
        self,
        formatter: BatchFormatter,
        placement: Placement | None,
        gatherer: SpanGatherer | None,
        collector: StatsCollector,
        *,
        row_keys: Callable[[SpanSteps, Int64Array], RowKeys],
    ) -> None:
        """The gatherer, if there are functions, replaces rows that they reject.

        `row_keys` makes keys of those of a task.
        """
        self._formatter, self._placement, self._gatherer, self._collector = formatter, placement, gatherer, collector
        self._row_keys = row_keys

    def __call__(self, task: BuildTask, gathered: GatheredRows) -> BuiltBatches:
        """The batches of some rows, up to the first that fails."""
        batch_rows = task.steps.batch_rows
        span_keys = None if task.keys is None else self._row_keys(task.steps, task.keys)
        if not self._formatter.on_host and gathered.failure is None:
            with self._collector.timed("transform", "busy"):  # all batches at once: no function sees them
                if self._placement is None:
                    made = self._formatter.format_many(gathered.columns, batch_rows)
                else:
                    made = self._placement.place_many(gathered.columns, span_keys, batch_rows)
            if made is not None:
                return BuiltBatches(made, gathered.bad)
        batches: list[Any] = []
        start = 0
        for columns, count in zip(split(gathered.columns, batch_rows), batch_rows, strict=True):
            keys = None if span_keys is None else span_keys.part(start, count)
            try:
                if gathered.failure is not None and gathered.failure[0] < start + count:
                    raise gathered.failure[1]
                batches.append(self._format_batch(task, columns, start, keys, gathered.bad))
            except Exception as error:
                batches.append(Failure(error))
                break
            start += count
        return BuiltBatches(batches, gathered.bad)

    def _format_batch(
        self, task: BuildTask, columns: Columns, start: int, keys: RowKeys | None, bad: dict[int, BadSample]
    ) -> Any:
        """The batch that starts at a row of the task; adds the rows that are replaced to `bad`."""
        tries = 0
        while True:
            try:
                with self._collector.timed("transform", "busy"):
                    finished = self._formatter(columns, keys if self._formatter.needs_keys else None)
                    return finished if self._placement is None else self._placement.place(finished, keys)
            except BadRowsError as rejected:
                tries += 1
                for index, error in sorted(rejected.failures.items()):
                    assert self._gatherer is not None
                    row = task.identity(start + index)
                    bad.setdefault(start + index, self._gatherer.replace(columns, index, row, error, first=tries))
