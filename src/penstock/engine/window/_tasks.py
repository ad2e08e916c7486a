"""What a builder gets: the rows of a span, and where each is. In shared memory if the builder is another process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.planning import RowIdentity, SpanSamples
from penstock.engine.window._rows import WindowRows
from penstock.plan import Places, SpanSteps
from penstock.table import Int64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class TableTask:
    """The rows of a task that come from one table."""

    table: int
    places: Places
    """Which rows of the task these are."""
    located: WindowRows
    """Where they are, or the draws of their samples."""
    samples: SpanSamples | None
    padding: npt.NDArray[np.bool_] | None
    """Mask of the rows that only pad the epoch's last step."""
    epochs: int | Int64Array
    """The epoch of all rows, or of each."""
    positions: Int64Array | None
    """The positions of the rows in the table, or the numbers of samples; None if they are not needed."""
    damaged: tuple[int, ...]
    """The rows, or samples, that need a block that could not be read."""
    slab_capacity: int
    """Rows of the slab."""

    def __len__(self) -> int:
        return len(self.located.slab_rows if self.samples is None else self.samples.numbers)

    @classmethod
    def joined(cls, parts: Sequence["TableTask"], rows: int) -> "TableTask":
        """The rows of some readers, of a task that has so many rows; none of them are composed samples."""
        first, *others = parts
        if not others:
            return first
        places = np.concatenate([part.places for part in parts])
        starts = accumulate(map(len, parts), initial=0)
        one_epoch = all(isinstance(part.epochs, int) and part.epochs == first.epochs for part in parts)

        def concatenated(values: Sequence[Any]) -> Any:
            return None if values[0] is None else np.concatenate(values)

        unordered = replace(
            first,
            located=WindowRows.joined([part.located for part in parts]),
            padding=concatenated([part.padding for part in parts]),
            epochs=first.epochs if one_epoch else concatenated([part.each_epoch for part in parts]),
            positions=concatenated([part.positions for part in parts]),
            damaged=tuple(start + index for start, part in zip(starts, parts, strict=False) for index in part.damaged),
            slab_capacity=max(part.slab_capacity for part in parts),
        )
        order = np.argsort(places, kind="stable")  # which merges what is in order, as each part is
        return unordered._take(order, order, slice(None) if len(places) == rows else places[order])

    @property
    def each_epoch(self) -> Int64Array:
        """The epoch of each row."""
        return np.broadcast_to(self.epochs, len(self))

    def part(self, first: int, end: int) -> "TableTask":
        """The rows among those from `first` to `end` of the task."""
        places: Places = slice(None)
        if not isinstance(self.places, slice):
            first_place = first
            first, end = np.searchsorted(self.places, (first, end)).tolist()
            places = self.places[first:end] - first_place
        here = slice(first, end)
        if self.samples is None:
            return self._take(here, here, places)
        draws = slice(int(self.samples.offsets[first]), int(self.samples.offsets[end]))
        return replace(self._take(here, draws, places), samples=self.samples.part(first, end))

    def _take(self, rows: Int64Array | slice, draws: Int64Array | slice, places: Places) -> "TableTask":
        """Some rows or samples, of which these are the draws, and their places in another task."""
        damaged = np.flatnonzero(np.isin(np.arange(len(self))[rows], self.damaged)).tolist() if self.damaged else ()
        return replace(
            self,
            places=places,
            located=self.located.take(draws),
            padding=None if self.padding is None else self.padding[rows],
            epochs=self.epochs if isinstance(self.epochs, int) else self.epochs[rows],
            positions=None if self.positions is None else self.positions[rows],
            damaged=tuple(damaged),
        )

    def identity(self, index: int) -> RowIdentity:
        """Which row of the table a row is."""
        assert self.positions is not None
        epoch = self.epochs if isinstance(self.epochs, int) else int(self.epochs[index])
        return RowIdentity(self.table, int(self.positions[index]), epoch)


@dataclass(frozen=True, eq=False)
class BuildTask:
    """The rows of a span, all of which are in the window."""

    steps: SpanSteps
    tables: list[TableTask]
    keys: Int64Array | None
    """What random numbers of each row depend on, besides the seed and the epoch; None if there are none. Of a reader's
    part there is one for each row of the span, 0 for those of other readers."""

    @classmethod
    def joined(cls, parts: Sequence["BuildTask"]) -> "BuildTask":
        """The rows that some readers have of a span."""
        first, *others = parts
        if not others:
            return first
        tables: dict[int, list[TableTask]] = {}
        for part in parts:
            for table in part.tables:
                tables.setdefault(table.table, []).append(table)
        joined = [TableTask.joined(tables[number], first.steps.rows) for number in sorted(tables)]
        return cls(first.steps, joined, joined_keys(parts))

    def part(self, first: int, end: int) -> "BuildTask":
        """Some consecutive rows."""
        tables = [part for table in self.tables if len(part := table.part(first, end))]
        return BuildTask(self.steps, tables, None if self.keys is None else self.keys[first:end])

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def identity(self, index: int) -> RowIdentity:
        """Which row of which table a row is."""
        for table in self.tables:
            if isinstance(table.places, slice):
                return table.identity(index)
            at = int(np.searchsorted(table.places, index))
            if at < len(table.places) and table.places[at] == index:
                return table.identity(at)
        raise IndexError(index)


def joined_keys(parts: Sequence[BuildTask]) -> Int64Array | None:
    """The keys of a span, of whose rows each reader has a part."""
    known = [part.keys for part in parts if part.keys is not None]
    return np.bitwise_or.reduce(known) if known else None
