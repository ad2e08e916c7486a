"""The window: pieces of the table in memory, within one budget of bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Allocate, HostBuffers
from penstock.engine._demands import Demands
from penstock.engine._kept import KeptPages
from penstock.engine._pieces import Piece, Places, Span
from penstock.engine._slab import FixedColumn, Layout, Slab, placeable
from penstock.engine._stats import Gauge
from penstock.errors import NotFoundError
from penstock.format import Field
from penstock.format.kinds import Linked
from penstock.table import (
    Cells,
    Reader,
    copy_numbers,
    gather,
    read_apart,
    read_pages,
    read_straight,
)

_SPARE_BYTES, _SPARE_SHARE = 64 << 20, 8
"""Memory of pages that were read, kept for the next ones: so much, and so large a part of the budget at most."""


class Window:
    """Knows how pieces of some columns are asked for, what they cost, and how they are filled; not thread-safe."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        slab: Slab,
        *,
        budget_bytes: int,
        heavy: Field | None,
        kept: KeptPages | None,
        gauge: Gauge,
        allocate: Allocate | None,
        batches: HostBuffers | None,
    ) -> None:
        """With `kept`, pages of other columns than the heavy one come from there; `allocate` gives memory for pages.

        With `batches`, which gives memory for them, large rows are read straight to their places in a batch.
        """
        self._reader, self._layout, self._gauge, self._budget_bytes = reader, layout, gauge, budget_bytes
        self._batches, self._kept = batches, kept
        self._placed = {} if batches is None else {column.name: column for column in layout.fixed if placeable(column)}
        self._placed_row_bytes = sum(column.row_bytes for column in self._placed.values())
        self._demands = Demands(
            layout,
            in_slab=[c for c in layout.fixed if slab.holds(c.name) and c.name not in self._placed],
            placed=list(self._placed.values()),
            heavy=heavy,
            kept=kept,
            straight=reader.store.straight,
        )
        self._names = {field.id: field.name for field in layout.fields}
        self.slab = slab
        self._held_bytes = 0
        # Memory that `allocate` gives is pinned: asking for more of it makes the whole device wait.
        spare = min(_SPARE_BYTES, budget_bytes // _SPARE_SHARE) if allocate is None else budget_bytes
        self._memory = HostBuffers(spare, allocate)

    @property
    def places(self) -> bool:
        """Whether some columns are read straight to their places in a batch: pieces must know where their rows go."""
        return bool(self._placed)

    def describe(self, piece: Piece) -> None:
        """Work out what a piece needs."""
        demand = self._demands.of(piece)
        piece.requests, piece.straight, piece.light = list(demand.requests), demand.straight, demand.light
        piece.bytes, piece.raw_bytes, piece.placeable = demand.bytes, demand.raw_bytes, demand.placeable
        piece.taken = demand.taken
        for group in demand.kept:
            assert self._kept is not None
            runs = self._kept.found(group)
            if runs is None:
                piece.requests.append(group)
            else:
                piece.pages.add_all(group.file, runs)
        piece.missing = len(piece.requests)

    def read(self, piece: Piece, number: int, late_s: float | None = None) -> tuple[list[tuple[int, memoryview]], int]:
        """The pages of one of a piece's requests, none if they are in their places; and how many bytes were fetched.

        What goes to its place may be given up as late, with a `StorageTimeout`, and read again.
        """
        request, rows = piece.requests[number], piece.straight.get(number)
        try:
            if rows is not None:
                name = self._names[request.file.fields[0]]
                if piece.placed and name in self._placed:
                    read_apart(self._reader.store, request, self._places(piece, name, rows), late_s)
                    return [], request.bytes
                where = name, piece.row_start + rows.start, len(rows)
                values = self.slab.room(*where)
                read_straight(self._reader.store, request, values.reshape(-1).view(np.uint8).data, late_s)
                self.slab.written(*where)
                return [], request.bytes
            if self._kept is not None and self._demands.is_kept(request):
                runs, fetched = self._kept.read(request)
                return runs, request.bytes if fetched else 0
            store = self._reader.store
            return read_pages(store, request, self._room if store.straight else None), request.bytes
        except NotFoundError:
            with self._reader.explained():
                raise

    def _places(self, piece: Piece, name: str, rows: range) -> list[memoryview]:
        """Where each of some rows goes, with memory for those that nobody wants."""
        goes = [piece.goes.get(row) for row in rows]
        size = self._placed[name].row_bytes
        spare = self._room(goes.count(None) * size)
        unwanted = (spare[first : first + size] for first in range(0, len(spare), size))
        return [next(unwanted) if place is None else place[0].placed[name].row(place[1]) for place in goes]

    def _room(self, size: int) -> memoryview:
        """Memory for pages; not a map of the file, which costs a fault for each page of memory and then has to go."""
        room: memoryview = self._memory.empty((size,), np.uint8).data
        return room

    def admit(self, piece: Piece, *, regardless: bool) -> bool:
        """Take a piece in, if there is room, or if there never will be more."""
        placed = self.places and piece.placeable and piece.told
        opening = {span for span, _ in piece.goes.values() if not span.placed} if placed else set()
        own_bytes = piece.bytes + (0 if placed else piece.rows * self._placed_row_bytes)
        cost = own_bytes + piece.raw_bytes + sum(len(span.which) for span in opening) * self._placed_row_bytes
        if self._held_bytes + cost > self._budget_bytes and not regardless:
            return False
        start = self.slab.take(len(piece.taken)) if self._layout.fixed else 0
        if start is None:
            if regardless:
                raise MemoryError(f"the window has no room for {piece.rows:,} more rows; raise device_memory")
            return False
        for span in opening:
            span.placed = {name: self._open(column, len(span.which)) for name, column in self._placed.items()}
        piece.row_start, piece.admitted, piece.placed, piece.bytes = start - piece.taken.start, True, placed, own_bytes
        self._charge(cost)
        return True

    def _open(self, column: FixedColumn, rows: int) -> Places:
        assert self._batches is not None
        values = self._batches.empty((rows, *column.shape), column.dtype)
        return Places(values, values.reshape(-1).view(np.uint8).data, values.nbytes // rows)

    def release(self, span: Span) -> None:
        """A span has been put together: its batches are the loop's now."""
        if span.placed:
            self._charge(-self._placed_row_bytes * len(span.which))
            span.placed = {}

    def filled(self, piece: Piece) -> None:
        """The pages of a piece are no longer needed."""
        piece.goes = {}
        self._charge(-piece.raw_bytes)

    def free(self, piece: Piece) -> None:
        """Nobody needs a piece any more."""
        if self._layout.fixed:
            self.slab.give_back(piece.row_start + piece.taken.start, len(piece.taken))
        piece.cells, piece.encoded = {}, {}
        self._charge(-piece.bytes)

    def fill(self, piece: Piece) -> None:
        """Put the rows of a piece's pages in their places; for any thread."""
        self._fill_fixed(piece)
        for field in self._layout.loose:
            cells = gather(self._reader.snapshot.schema, field, [piece.want], piece.pages, parse=True)
            if isinstance(field.kind, Linked):  # neighbours lie together in the linked object, and are read together
                cells = Cells(None, (self._reader.resolved(field, cells.array, cells),))
            piece.cells[field.name] = cells

    def _fill_fixed(self, piece: Piece) -> None:
        first, end = piece.row_start, piece.row_start + piece.rows
        there = {piece.requests[number].file.fields[0] for number in piece.straight}
        for column in self._layout.fixed:
            mask = self.slab.masks.get(column.name)
            if column.field is None or column.field.id not in there:
                values = self.slab.room(column.name, first, piece.rows)
                self._fill_column(column, piece, values, None if mask is None else mask[first:end])
                self.slab.written(column.name, first, piece.rows)
            elif mask is not None:
                mask[first:end] = True

    def fill_with_nothing(self, piece: Piece) -> None:
        """Stand in for a damaged piece, whose rows are read one by one later."""
        for field in self._layout.loose:
            piece.cells[field.name] = Cells(None, (pa.nulls(piece.rows, field.kind.arrow_type),))

    def _fill_column(
        self, column: FixedColumn, piece: Piece, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
    ) -> None:
        if column.field is None:
            values[:] = piece.want.fragment.row_ids_at(piece.want.rows)
            return
        light = self._light(column.field, piece)
        if light is not None:
            values[:] = light
        if light is not None or copy_numbers(column.field, piece.want, piece.pages, values):
            if mask is not None:
                mask[:] = True
            return
        cells = gather(self._reader.snapshot.schema, column.field, [piece.want], piece.pages)
        filled = self._reader.values(column.field, cells)
        values[:] = filled.values
        if mask is not None:
            mask[:] = True if filled.mask is None else filled.mask

    def _light(self, field: Field, piece: Piece) -> npt.NDArray[Any] | None:
        """A column of numbers that is kept, so that it need not be taken out of pages."""
        found = piece.light.get(field.id)
        if found is None and self._kept is not None:
            found = self._kept.numbers(field, piece.want)
            if found is not None:
                piece.light[field.id] = found
        return found

    def _charge(self, cost: int) -> None:
        self._held_bytes += cost
        gauge = self._gauge  # of all runs of a loader, one after the other
        gauge.window_bytes = self._held_bytes
        gauge.window_peak_bytes = max(gauge.window_peak_bytes, self._held_bytes)
