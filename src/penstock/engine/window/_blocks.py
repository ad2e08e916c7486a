"""The state of blocks in the window, and memory that rows are read into."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import BufferPool
from penstock.engine.planning import FixedColumn, PlannedBlock, Span
from penstock.engine.window._block_requests import BlockRequest
from penstock.engine.window._slab import RowsAt
from penstock.table import Int64Array, PageRequest, Pages, RawColumn
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.engine.window._window import Window


class PreallocatedColumn(NamedTuple):
    """Memory for a column of a span's batches, allocated early so that rows are read directly into it."""

    values: npt.NDArray[Any] | RowsAt
    """The rows of the span, which may be some rows of larger batches."""
    memory: memoryview
    """The bytes of the batches."""
    row_bytes: int
    rows: range | Int64Array
    """For each row its index in the batches."""

    def row(self, index: int) -> memoryview:
        """The bytes of one row."""
        start = int(self.rows[index]) * self.row_bytes
        return self.memory[start : start + self.row_bytes]


class BatchMemory(Protocol):
    """Where rows are read that go directly into batches."""

    in_budget: bool
    """Whether the memory counts as part of the window."""

    def accepts(self, span: Span) -> bool:
        """Whether single rows of a span can be read into its batches."""

    def is_available(self, span: Span) -> bool:
        """Whether the batches of a span have memory now."""

    def column(self, span: Span, column: FixedColumn) -> PreallocatedColumn:
        """The memory of a column of a span's rows."""


class PooledBatches:
    """Batches in memory of this process."""

    in_budget = True

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers

    def accepts(self, span: Span) -> bool:  # noqa: ARG002
        """See `BatchMemory`."""
        return True

    is_available = accepts

    def column(self, span: Span, column: FixedColumn) -> PreallocatedColumn:
        """See `BatchMemory`."""
        rows = len(span)
        values = self._buffers.allocate((rows, *column.shape), column.dtype)
        return PreallocatedColumn(values, values.reshape(-1).view(np.uint8).data, values.nbytes // rows, range(rows))


class MixedBatches:
    """Batches in memory of this process, which the rows of several tables share."""

    in_budget = True

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self._arrays: dict[int, dict[str, npt.NDArray[Any]]] = {}

    def accepts(self, span: Span) -> bool:  # noqa: ARG002
        """See `BatchMemory`."""
        return True

    is_available = accepts

    def column(self, span: Span, column: FixedColumn) -> PreallocatedColumn:
        """See `BatchMemory`."""
        rows, places = span.steps.rows, np.asarray(span.places)
        values = self.array(span.number, column.name, (rows, *column.shape), column.dtype)
        memory = values.reshape(-1).view(np.uint8).data
        return PreallocatedColumn(RowsAt(values, places), memory, values.nbytes // rows, places)

    def array(self, number: int, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The memory of a column of a span, allocated by whoever needs it first."""
        columns = self._arrays.setdefault(number, {})
        if name not in columns:
            columns[name] = self._buffers.allocate(shape, dtype)
        return columns[name]

    def release(self, number: int) -> None:
        """Forget a span that is built."""
        self._arrays.pop(number, None)


class EncodedRows(NamedTuple):
    """The encoded values of a column as offsets into pages; a view of each value would be an object per row."""

    memory: list[Any]
    """None for a null."""
    starts: list[int]
    ends: list[int]

    def row(self, index: int) -> Any:
        """The bytes of one value, or None."""
        memory = self.memory[index]
        return None if memory is None else memory[self.starts[index] : self.ends[index]]

    @classmethod
    def of(cls, parts: Sequence[pa.Array], view: Callable[[Buffer], Any]) -> "EncodedRows":
        """The rows of arrays of bytes, or of lists of numbers, as slices of a `view` of their memory."""
        found = cls([], [], [])
        for part in parts:
            width = np.dtype(np.int64 if part.type == pa.large_binary() else np.int32)
            offsets_buffer, data = part.buffers()[1], part.buffers()[-1]
            bounds = np.frombuffer(offsets_buffer, width, len(part) + 1, part.offset * width.itemsize)
            if pa.types.is_list(part.type):
                size = part.type.value_type.bit_width // 8
                bounds = (bounds.astype(np.int64) + part.values.offset) * size
            offsets = bounds.tolist()
            memory: list[Any] = [view(data or b"")] * len(part)
            if part.null_count:
                for row in np.flatnonzero(~np.asarray(part.is_valid())).tolist():
                    memory[row] = None
            found.memory.extend(memory)
            found.starts.extend(offsets[:-1])
            found.ends.extend(offsets[1:])
        return found


class WindowBlock:
    """A block in the window: requested, filled, read by spans, freed. Only the window changes it."""

    __slots__ = (
        "_encoded",
        "admitted",
        "bytes",
        "closed",
        "destinations",
        "duplicated",
        "error",
        "filled",
        "into_batch",
        "pages",
        "pending_requests",
        "pending_spans",
        "plan",
        "raw_columns",
        "request",
        "requests",
        "slab_start",
        "waiting_spans",
        "window",
    )  # fmt: skip

    def __init__(self, window: "Window", plan: PlannedBlock, request: BlockRequest) -> None:
        self.window, self.plan, self.request = window, plan, request
        self.requests: list[PageRequest] = list(request.requests)
        self.pages = Pages()
        self.pending_requests = 0
        self.bytes = request.bytes
        """Bytes of its rows in the window."""
        self.slab_start = 0
        """Index of its first row in the slab."""
        self.destinations: dict[int, tuple[Span, int]] = {}
        """For each row the span that reads it and its index in that span."""
        self.duplicated = False
        """Whether a row has two destinations."""
        self.into_batch = False
        """Whether its large rows are read directly into batches, instead of into the slab."""
        self.raw_columns: dict[str, RawColumn] = {}
        """Variable-size columns, which are not in the slab."""
        self.filled = self.admitted = False
        self.closed = False
        """Whether no span planned later needs it."""
        self.error: BaseException | None = None
        self.pending_spans = 0
        """Spans that need it and are not built yet."""
        self.waiting_spans: list[Span] = []
        """Spans that cannot be built until it is filled."""
        self._encoded: dict[str, EncodedRows] = {}

    @property
    def destinations_known(self) -> bool:
        """Whether each unread row has exactly one destination."""
        return not self.duplicated and len(self.destinations) == self.plan.unread

    def add_destination(self, row: int, span: Span, index: int) -> None:
        """Record that a row is the `index`th of a span."""
        self.duplicated = self.duplicated or row in self.destinations
        self.destinations[row] = span, index

    def encoded_rows(self, name: str, view: Callable[[Buffer], Any]) -> EncodedRows | None:
        """The encoded values of a column; None if some are blobs or links."""
        found = self._encoded.get(name)
        if found is None:
            cells = self.raw_columns[name]
            if cells.references is not None or pa.types.is_struct(cells.chunks[0].type):
                return None
            found = self._encoded[name] = EncodedRows.of(cells.chunks, view)
        return found

    def drop_rows(self) -> None:
        """Forget the columns that are not in the slab."""
        self.raw_columns, self._encoded = {}, {}
