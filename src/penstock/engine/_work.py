"""From a span to finished batches: gather, replace what is bad, and let the user's transform have it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator
from penstock.engine._collate import Collator, put_row, split
from penstock.engine._decode import Columns
from penstock.engine._pieces import Span
from penstock.engine._selection import Selection
from penstock.engine._slab import Slab
from penstock.engine._stats import BadSample, Gauge
from penstock.errors import CorruptError, InvalidInputError, SampleError
from penstock.plan import derive, mix
from penstock.table import Rows

PAD = "_pad"
"""The column that is true for rows that stand in for others: fill of the last step, and replaced bad rows."""

_TRIES = 64
_LIMIT_GRACE = 100


@dataclass(frozen=True, slots=True)
class RowKeys:
    """What the randomness of a batch's transforms depends on."""

    seed: int
    epoch: int
    row_ids: Rows

    def generator(self, index: int) -> np.random.Generator:
        """Random numbers for one row, the same whenever and wherever it is transformed."""
        return np.random.Generator(np.random.Philox(derive(self.seed, self.epoch, int(self.row_ids[index]))))

    def numbers(self, count: int) -> npt.NDArray[np.float64]:
        """So many random numbers below 1 for each row, as dependable; for all rows at once."""
        key = derive(self.seed, self.epoch, count)
        drawn = mix(key, self.row_ids[:, None] * count + np.arange(count))
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Finish(Protocol):
    """The last step: from columns to what the user's loop gets."""

    @property
    def needs_keys(self) -> bool:
        """Whether it wants to know the rows."""

    @property
    def by_rows(self) -> bool:
        """Whether it calls a function for every row, so that batches are made one at a time."""

    @property
    def on_host(self) -> bool:
        """Whether it looks at what is in the columns, so that they must be in this process's memory."""

    alone: bool
    """Whether it has a process to itself, and may seed global random generators."""

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """Raises `BadRows` where single rows cannot be transformed."""

    def all_of(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:
        """The batches of a span at once, where it does not look at what is in the columns; None where it cannot."""

    def lower(self, value: Any) -> Any:
        """What it made, with numpy arrays instead of a framework's, to be carried to another process."""

    def lift(self, value: Any) -> Any:
        """Undo `lower`."""


class Placement(Protocol):
    """Brings batches to where the loop wants them."""

    accelerator: Accelerator
    needs_keys: bool

    def place(self, batch: Any, keys: RowKeys | None) -> Any:
        """Begin to; in the thread of a worker."""

    def place_all(self, columns: Columns, keys: RowKeys | None, batch_rows: Sequence[int]) -> list[Any] | None:
        """The same for the batches of a span at once, whose columns nobody else wants to see; None where it cannot."""

    def hand_over(self, batch: Any) -> Any:
        """What the loop gets; in its own thread."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What stands in the place of a batch that could not be made, after those that could."""

    error: Exception


class BadRows(Exception):
    """Rows of a batch that could not be transformed, or not even decoded."""

    def __init__(self, failures: Mapping[int, Exception], *, undecodable: bool = False) -> None:
        super().__init__(failures)
        self.failures, self.undecodable = failures, undecodable


OnBad = Callable[[BadSample], None]


@dataclass(frozen=True)
class BadPolicy:
    """What happens to rows that cannot be used."""

    tolerant: bool
    tell: OnBad | None
    """Called for every bad sample before the batch without it is delivered; it may raise."""
    limit: int | float
    """Most bad samples, or most of them as a share of the rows read."""

    def __post_init__(self) -> None:
        if not isinstance(self.limit, int | float) or self.limit < 0:
            raise InvalidInputError(f"bad_sample_limit is a number or a share of samples, not {self.limit!r}")

    def check(self, count: int, rows: int) -> None:
        """Stop a run that is rotting."""
        most = self.limit if isinstance(self.limit, int) else max(_LIMIT_GRACE, self.limit * rows)
        if count > most:
            raise SampleError(
                f"{count} samples were bad, more than bad_sample_limit={self.limit} allows; "
                "look at stats().bad_samples, and mend or delete those rows"
            )


class Worker:
    """Makes the batches of spans; one for each thread."""

    def __init__(
        self,
        collator: Collator,
        slab: Slab,
        finish: Finish,
        placement: Placement | None,
        policy: BadPolicy,
        gauge: Gauge,
        *,
        selection: Selection,
        seed: int,
        flag: bool,
    ) -> None:
        self._slab, self._selection = slab, selection
        self._collator, self._finish, self._policy, self._gauge = collator, finish, policy, gauge
        self._placement, self._accelerator = placement, None if placement is None else placement.accelerator
        self._needs_keys = finish.needs_keys or (placement is not None and placement.needs_keys)
        self._seed, self._flag = seed, flag

    def __call__(self, span: Span) -> list[Any]:
        """See `Finish` for what a batch is; one that goes wrong after others is a `Failure`, and the last."""
        columns, bad = self._collator.columns(span, self._slab)
        replaced = np.zeros(len(span.which), bool) if span.padding is None else span.padding.copy()
        spoilt = [number for number, piece in enumerate(span.pieces) if piece.error is not None]
        damaged = set(np.flatnonzero(np.isin(span.which, spoilt)).tolist()) if spoilt else set()
        for index in damaged:
            self._mend(span, columns, index, replaced)
        first_bad = len(span.which)
        for index, error in bad.items():
            if not self._policy.tolerant:
                first_bad = min(first_bad, index)
            elif index not in damaged:
                self._replace(span, columns, index, error, replaced)
        if self._flag:
            columns[PAD] = replaced
        ids = span.row_ids if self._needs_keys else None
        if not self._finish.on_host and first_bad == len(span.which):
            with self._gauge.timed("transform", "busy"):
                made = self._all_at_once(columns, None if ids is None else RowKeys(self._seed, span.epoch, ids), span)
            if made is not None:
                return made
        batches: list[Any] = []
        start = 0
        for batch, rows in zip(split(columns, span.batch_rows), span.batch_rows, strict=True):
            keys = None if ids is None else RowKeys(self._seed, span.epoch, ids[start : start + rows])
            try:
                if first_bad < start + rows:
                    raise self._located(span, first_bad, bad[first_bad])
                batches.append(self._finished(span, start, batch, keys))
            except Exception as error:
                if not batches:
                    raise
                return [*batches, Failure(error)]
            start += rows
        return batches

    def _all_at_once(self, columns: Columns, keys: RowKeys | None, span: Span) -> list[Any] | None:
        """Batches that nobody wants to see in this process's memory before the loop does; None where it cannot be."""
        if self._placement is None:
            return self._finish.all_of(columns, span.batch_rows)
        return self._placement.place_all(columns, keys, span.batch_rows)

    def _finished(self, span: Span, start: int, batch: Columns, keys: RowKeys | None) -> Any:
        tries = 0
        while True:
            try:
                with self._gauge.timed("transform", "busy"):
                    finished = self._finish(batch, keys if self._finish.needs_keys else None)
                    return finished if self._placement is None else self._placement.place(finished, keys)
            except BadRows as bad:
                tries += not bad.undecodable
                flags = np.asarray(batch[PAD]) if self._flag else np.zeros(len(next(iter(batch.values()))), bool)
                for index, error in sorted(bad.failures.items()):
                    self._replace(span, batch, start + index, error, flags, at=index, first=tries)

    def _mend(self, span: Span, columns: Columns, index: int, replaced: Any) -> None:
        """A row of a piece that is damaged: its own page may be whole."""
        try:
            put_row(columns, index, self._collator.row(span.position(index)), self._accelerator)
        except (SampleError, CorruptError) as reason:
            self._replace(span, columns, index, reason, replaced)

    def _replace(
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
        """Put another row in the place of a bad one, which depends on the row and the epoch alone; or raise."""
        if not self._policy.tolerant:
            raise self._located(span, index, error)
        row_id = int(span.row_ids[index])
        if all(row != index for row, _ in span.bad):
            span.bad.append((index, BadSample(row_id, span.epoch, str(error))))
        key = derive(self._seed, span.epoch, row_id)
        picks = mix(key, np.arange(first, _TRIES)) % np.uint64(len(self._selection))
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

    def _located(self, span: Span, index: int, error: Exception) -> Exception:
        error.add_note(f"in row {span.position(index)} of the table (row id {int(span.row_ids[index])})")
        return error

    def _row(self, position: int) -> Columns:
        row = self._collator.row(position)
        if self._flag:
            row[PAD] = np.ones(1, bool)
        return row
