"""Slots: shared memory for the rows of one span each, which worker processes write and the loop's process delivers."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import SharedMemory, forks
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly import PAD, SOURCE, AnySpan, ColumnShape, MixedColumn, sample_shapes
from penstock.engine.planning import FixedColumn, Layout, Span
from penstock.engine.window import PreallocatedColumn, RowsAt
from penstock.plan import Places

HIDDEN = "\0"
ROW_IDS, POSITIONS = "\0row_ids", "\0positions"
TABLES, EPOCHS, TABLE_ROW_IDS = "\0tables", "\0epochs", "\0table_row_ids"
"""Names of hidden columns; no column of a table has them."""

_ALIGNMENT = 64
_MAX_OPEN = 128
"""Slots with a descriptor; more are used once."""

Column = npt.NDArray[Any]


RowShape = tuple[str, np.dtype[Any], tuple[int, ...]]
"""The name of a column, and the type and shape of a row."""


def table_columns(layout: Layout, decode: DecodeOptions) -> list[RowShape]:
    """Columns of a table that a slot has, with their masks."""
    return _with_masks(sample_shapes(layout, decode))


def mixture_columns(columns: Sequence[MixedColumn]) -> list[RowShape]:
    """The same for a mixture."""
    known = {column.name: column.fixed for column in columns if column.fixed is not None}
    return [*_with_masks(known), (SOURCE, np.dtype(np.int64), ())]


def _with_masks(columns: Mapping[str, ColumnShape]) -> list[RowShape]:
    wanted: list[RowShape] = []
    for name, column in columns.items():
        wanted.append((name, column.dtype, column.shape))
        if column.mask_shape is not None:
            wanted.append((f"{name}_mask", np.dtype(bool), column.mask_shape))
    return wanted


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
    """Bytes of a slot."""

    @classmethod
    def of(
        cls, columns: Sequence[RowShape], rows: int, *, flags_rows: bool, row_ids: bool, positions: bool, tables: bool
    ) -> "SlotLayout":
        """Columns of rows of a fixed shape, and what else is known of each row."""
        hidden = (
            (ROW_IDS, row_ids),
            (POSITIONS, positions),
            *((name, tables) for name in (TABLES, EPOCHS, TABLE_ROW_IDS)),
        )
        wanted = [*columns, *[(PAD, np.dtype(bool), ())] * flags_rows]
        wanted += [(name, np.dtype(np.int64), ()) for name, needed in hidden if needed]
        found: list[SharedColumn] = []
        end = 0
        for name, dtype, shape in wanted:
            found.append(SharedColumn(name, dtype, shape, end))
            end += -(-rows * prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(found), end)

    @property
    def values_end(self) -> int:
        """Where the hidden columns start, which are needed after the batches are made."""
        return min((column.offset for column in self.columns if column.name.startswith(HIDDEN)), default=self.size)

    def arrays(self, memory: npt.NDArray[np.uint8], rows: int) -> dict[str, Column]:
        """The columns of a slot, for a span of some rows."""
        found: dict[str, Column] = {}
        for column in self.columns:
            size = rows * prod(column.shape) * column.dtype.itemsize
            found[column.name] = (
                memory[column.offset : column.offset + size].view(column.dtype).reshape(rows, *column.shape)
            )
        return found


class Slot:
    """A slot in the process of the loop."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.memory = number, SharedMemory.create(size)
        self.mapped_by: set[int] = set()
        """The processes that have mapped it, by `WorkerProcess.id`."""
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
            if slot.is_open and len(self._free) <= self._max_idle:
                return slot
            self.drop(slot)
        self._created += 1
        self._open += 1
        slot = Slot(self._created, self._size)
        if self._on_create is not None:
            self._on_create(slot.memory)
        return slot

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
        found = self._dropped[:]
        del self._dropped[: len(found)]
        return found


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


class MappedSlots:
    """The slots of a loader in a worker process; memory for batches that rows are read into (`BatchMemory`)."""

    in_budget = False  # the process of the loop accounts for them

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self._assigned: dict[int, int] = {}

    def map(self, new: Sequence[int], descriptors: Sequence[int], dropped: Sequence[int]) -> None:
        """Map new slots, and unmap dropped ones."""
        for number in dropped:
            self._memory.pop(number, None)
        for number, descriptor in zip(new, descriptors, strict=True):
            self._memory[number] = SharedMemory(descriptor).bytes

    def assign(self, slots: Mapping[int, int]) -> None:
        """Set the slots of spans."""
        self._assigned |= slots

    def reset(self) -> None:
        """Forget which slots spans have."""
        self._assigned = {}

    def memory(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot."""
        return self._memory[slot]

    def columns(self, slot: int, rows: int) -> dict[str, Column]:
        """The columns of a slot."""
        return self._layout.arrays(self._memory[slot], rows)

    def span_columns(self, span: AnySpan) -> dict[str, Column]:
        """The columns of a span's slot, with the rows of all processes."""
        return self.columns(self._assigned[span.number], span.steps.rows)

    def release(self, span: AnySpan) -> None:
        """Forget the slot of a span that is built."""
        del self._assigned[span.number]

    def accepts(self, span: Span) -> bool:  # noqa: ARG002
        """See `BatchMemory`."""
        return True

    def is_available(self, span: Span) -> bool:
        """See `BatchMemory`."""
        return span.number in self._assigned

    def column(self, span: Span, column: FixedColumn) -> PreallocatedColumn:
        """See `BatchMemory`."""
        values = self.span_columns(span)[column.name]
        memory = values.reshape(-1).view(np.uint8).data
        row_bytes = values.nbytes // len(values)
        if isinstance(span.places, slice):
            rows = range(len(values))[span.places]
            return PreallocatedColumn(values[span.places], memory, row_bytes, rows)
        return PreallocatedColumn(RowsAt(values, span.places), memory, row_bytes, span.places)


def write_rows(columns: Mapping[str, Column], places: Places, found: Mapping[str, Any]) -> None:
    """Write rows to their places in a slot, unless they are there already."""
    for name, values in columns.items():
        written = found.get(name)
        if written is None or isinstance(written, RowsAt):  # which are rows of the slot
            continue
        if not (isinstance(places, slice) and np.may_share_memory(values, written)):
            values[places] = written
