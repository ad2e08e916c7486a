"""Slots: shared memory for the batches of one span each, which builders write and the loop's process delivers."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import SharedMemory, forks
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
from penstock.engine.workers._transport import RemoteError, aligned, expand
from penstock.plan import SpanSteps
from penstock.table import Int64Array

_MAX_OPEN = 128
"""Slots with a descriptor; more are used once."""

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """A column of a slot."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of a row."""
    offset: int
    """Where it starts in the slot."""


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Which columns a slot has, and where."""

    columns: tuple[SharedColumn, ...]
    size: int
    """Bytes of all columns."""

    @classmethod
    def of(cls, columns: Mapping[str, ColumnShape], rows: int) -> "SlotLayout":
        """Columns of rows of a fixed shape, with their masks."""
        shared: list[SharedColumn] = []
        end = 0
        for name, column in columns.items():
            parts = [(name, column.dtype, column.shape)]
            if column.mask_shape is not None:
                parts.append((f"{name}_mask", np.dtype(bool), column.mask_shape))
            for part, dtype, shape in parts:
                shared.append(SharedColumn(part, dtype, shape, end))
                end += aligned(rows * prod(shape) * dtype.itemsize)
        return cls(tuple(shared), end)

    def arrays(self, memory: npt.NDArray[np.uint8], rows: int) -> dict[str, Column]:
        """The columns of a slot, for a span of some rows."""
        arrays: dict[str, Column] = {}
        for column in self.columns:
            size = rows * prod(column.shape) * column.dtype.itemsize
            values = memory[column.offset : column.offset + size].view(column.dtype)
            arrays[column.name] = values.reshape(rows, *column.shape)
        return arrays


class Slot:
    """A slot in the process of the loop."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.memory = number, SharedMemory.create(size)
        self.is_open = True
        """Whether it has a descriptor."""

    def close_fd(self) -> None:
        """Close the descriptor."""
        self.memory.close_fd()
        self.is_open = False


class SlotPool:
    """The slots of a loader; one returns to the pool when the last array of its batches is dropped."""

    def __init__(self, size: int, max_idle: int, on_create: Callable[[SharedMemory], None] | None) -> None:
        """Up to `max_idle` unused slots are kept; `on_create` is called with new memory, such as to pin it."""
        self._size, self._max_idle, self._on_create = size, max_idle, on_create
        self._free: deque[Slot] = deque()  # the garbage collector appends to it, in any thread
        self._created = self._open = 0
        self._dropped: list[int] = []

    def take(self) -> Slot:
        """A slot that nobody uses."""
        while self._free:
            slot = self._free.popleft()
            if slot.is_open and len(self._free) <= self._max_idle and len(slot.memory.bytes) >= self._size:
                return slot
            self.drop(slot)
        self._created += 1
        self._open += 1
        slot = Slot(self._created, self._size)
        if self._on_create is not None:
            self._on_create(slot.memory)
        return slot

    def grow(self, size: int) -> None:
        """Have slots of at least this size from now on."""
        self._size = max(self._size, size)

    def lease(self, slot: Slot) -> npt.NDArray[np.uint8]:
        """The memory of a slot; it returns to the pool when the last view of it is dropped."""
        if self._open > _MAX_OPEN:  # a user may hold more batches than descriptors are allowed
            slot.close_fd()
            self._open -= 1
        return np.asarray(_LeasedMemory(self, slot))

    def give_back(self, slot: Slot) -> None:
        """Take back a slot whose batches were dropped, in any thread."""
        self._free.append(slot)

    def drop(self, slot: Slot) -> None:
        """Use a slot no more; processes may still write to it."""
        self._dropped.append(slot.number)
        self._open -= slot.is_open
        slot.close_fd()

    def abandon(self) -> None:
        """In a forked process: reuse no slot of the parent."""
        self._free.clear()

    def take_dropped(self) -> list[int]:
        """The slots dropped since the last call, which processes can unmap."""
        dropped = self._dropped[:]
        del self._dropped[: len(dropped)]
        return dropped


class _LeasedMemory:
    """The base object of a delivered array; numpy references it while any view of the array is alive."""

    def __init__(self, pool: SlotPool, slot: Slot) -> None:
        self._pool, self._slot, self._forks = pool, slot, forks()
        self.__array_interface__ = slot.memory.bytes.__array_interface__

    def __del__(self) -> None:
        if self._forks == forks():
            self._pool.give_back(self._slot)
        else:  # a forked process may still read it
            self._pool.drop(self._slot)


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
        self._assemble = BatchAssembler(formatter, placement, (), collector, row_keys=row_keys)

    def of_slot(
        self,
        steps: SpanSteps,
        memory: npt.NDArray[np.uint8],
        keys: Int64Array | None,
        bad: dict[int, BadSample],
        failure: tuple[int, Exception] | None,
    ) -> list[Any]:
        """The batches of a span whose rows are in a slot."""
        columns: Columns = dict(self._layout.arrays(memory, steps.rows))
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
            batch = expand(packed)
            batch = formatter.from_transport(batch) if formatter.on_host else formatter.from_numpy(batch)
            if placement is not None:
                batch = placement.place(batch, None if keys is None else keys.part(start, rows))
            made.append(batch)
            start += rows
        return made
