"""The layout of slots, shared memory for the batches of one span each, and how the loop's process delivers these."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import aligned
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import (
    BatchAssembler,
    BatchFormatter,
    Columns,
    ColumnShape,
    Failure,
    GatheredRows,
    Placement,
    RowKeys,
)
from penstock.engine.window import BuildTask
from penstock.plan import SpanSteps
from penstock.runners import RemoteError, expand
from penstock.table import Int64Array


class SlotLayout:
    """Which columns a slot has; they lie one after the other, for as many rows as its span has."""

    def __init__(self, columns: Mapping[str, ColumnShape], rows: int) -> None:
        """Columns of at most some rows of a fixed shape, with their masks."""
        self.columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        """The type and shape of a row."""
        for name, column in columns.items():
            self.columns[name] = column.dtype, column.shape
            if column.mask_shape is not None:
                self.columns[f"{name}_mask"] = np.dtype(bool), column.mask_shape
        self.size = sum(aligned(rows * prod(shape) * dtype.itemsize) for dtype, shape in self.columns.values())

    def arrays(self, memory: "SlotMemory", rows: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of a slot, for a span of some rows."""
        return {name: memory.allocate((rows, *shape), dtype) for name, (dtype, shape) in self.columns.items()}


class SlotMemory:
    """Allocates arrays in a slot, one after the other, as far as there is room; else, and of objects, elsewhere."""

    def __init__(self, slot: npt.NDArray[np.uint8]) -> None:
        self._slot, self._end = slot, 0

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of undefined content."""
        dtype, start = np.dtype(dtype), self._end
        size = prod(shape) * dtype.itemsize
        if start + size > len(self._slot) or dtype.hasobject:
            return np.empty(shape, dtype)
        self._end = aligned(start + size)
        return self._slot[start : start + size].view(dtype).reshape(shape)


class Delivery:
    """Makes what the loop gets of what builders have made."""

    def __init__(
        self,
        layout: SlotLayout,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
        row_keys: Callable[[SpanSteps, Int64Array], RowKeys],
    ) -> None:
        self._layout, self._formatter, self._placement, self._row_keys = layout, formatter, placement, row_keys
        self._assemble = BatchAssembler(formatter, placement, None, collector, row_keys=row_keys)

    def of_slot(
        self,
        steps: SpanSteps,
        memory: npt.NDArray[np.uint8],
        keys: Int64Array | None,
        bad: dict[int, BadSample],
        failure: tuple[int, Exception] | None,
    ) -> list[Any]:
        """The batches of a span whose rows are in a slot."""
        columns: Columns = dict(self._layout.arrays(SlotMemory(memory), steps.rows))
        return self._assemble(BuildTask(steps, [], keys), GatheredRows(columns, bad, failure)).batches

    def of_builder(self, steps: SpanSteps, batches: Sequence[Any], key_ids: Int64Array | None) -> list[Any]:
        """The batches that a builder has made, converted and transferred."""
        made: list[Any] = []
        formatter, placement = self._formatter, self._placement
        keys = None if key_ids is None else self._row_keys(steps, key_ids)
        start = 0
        for packed, rows in zip(batches, steps.batch_rows, strict=False):
            if isinstance(packed, RemoteError):
                made.append(Failure(packed.revive()))
                break
            batch = formatter.from_worker(expand(packed))
            if placement is not None:
                batch = placement.place(batch, None if keys is None else keys.part(start, rows))
            made.append(batch)
            start += rows
        return made
