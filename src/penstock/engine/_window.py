"""The window: pieces of the table in memory, within one budget of bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine._pieces import Piece
from penstock.engine._slab import FixedColumn, Layout, Slab
from penstock.engine._stats import Gauge
from penstock.errors import NotFoundError
from penstock.table import Cells, Reader, gather, number_pieces, page_requests, read_pages, read_straight, row_range


class Window:
    """Knows how pieces of some columns are asked for, what they cost, and how they are filled; not thread-safe."""

    def __init__(self, reader: Reader, layout: Layout, *, capacity_rows: int, budget_bytes: int, gauge: Gauge) -> None:
        self._reader, self._layout, self._gauge, self._budget_bytes = reader, layout, gauge, budget_bytes
        self._ids = [field.id for field in layout.fields]
        self._fixed_row_bytes = sum(column.row_bytes for column in layout.fixed)
        self._loose_ids = {field.id for field in layout.loose}
        numbers = [column.field for column in layout.fixed if column.field is not None]
        self._bare = [(field.id, field.stored_bytes) for field in numbers if field.stored_bytes]
        self._names = {field.id: field.name for field in layout.fields}
        self.slab = Slab(layout.fixed, capacity_rows)
        self._held_bytes = 0

    def describe(self, piece: Piece) -> None:
        """Work out what a piece needs."""
        piece.requests = page_requests([piece.want], self._ids)
        piece.missing = len(piece.requests)
        if self._reader.store.fan_out == 1:  # elsewhere a request may be answered twice, by whoever is first
            piece.straight = self._straight(piece)
        piece.raw_bytes = sum(
            request.bytes for number, request in enumerate(piece.requests) if number not in piece.straight
        )
        loose = sum(request.bytes for request in piece.requests if self._loose_ids.intersection(request.file.fields))
        piece.bytes = piece.rows * self._fixed_row_bytes + loose

    def read(self, piece: Piece, number: int) -> list[tuple[int, memoryview]]:
        """The pages of one of a piece's requests, or nothing where they have been put in their places at once."""
        request, rows = piece.requests[number], piece.straight.get(number)
        try:
            if rows is None:
                return read_pages(self._reader.store, request)
            values = self.slab.values[self._names[request.file.fields[0]]]
            out = values[piece.row_start + rows.start : piece.row_start + rows.stop]
            read_straight(self._reader.store, request, out.reshape(-1).view(np.uint8).data)
            return []
        except NotFoundError:
            with self._reader.explained():
                raise

    def _straight(self, piece: Piece) -> dict[int, range]:
        """The requests that can be read straight to their places; of a column, all or none."""
        found: dict[int, range] = {}
        for field_id, row_bytes in self._bare:
            mine = [n for n, request in enumerate(piece.requests) if request.file.fields == (field_id,)]
            rows = [row_range(piece.requests[number], field_id, row_bytes, piece.want) for number in mine]
            if sum(len(part) for part in rows if part is not None) == piece.rows:
                found.update((number, part) for number, part in zip(mine, rows, strict=True) if part is not None)
        return found

    def admit(self, piece: Piece, *, regardless: bool) -> bool:
        """Take a piece in, if there is room, or if there never will be more."""
        cost = piece.bytes + piece.raw_bytes
        if self._held_bytes + cost > self._budget_bytes and not regardless:
            return False
        start = self.slab.take(piece.rows) if self._layout.fixed else 0
        if start is None:
            if regardless:
                raise MemoryError(f"the window has no room for {piece.rows:,} more rows")
            return False
        piece.row_start, piece.admitted = start, True
        self._charge(cost)
        return True

    def filled(self, piece: Piece) -> None:
        """The pages of a piece are no longer needed."""
        self._charge(-piece.raw_bytes)

    def free(self, piece: Piece) -> None:
        """Nobody needs a piece any more."""
        if self._layout.fixed:
            self.slab.give_back(piece.row_start, piece.rows)
        piece.cells = {}
        self._charge(-piece.bytes)

    def fill(self, piece: Piece) -> None:
        """Put the rows of a piece's pages in their places; for any thread."""
        first, end = piece.row_start, piece.row_start + piece.rows
        there = {piece.requests[number].file.fields[0] for number in piece.straight}
        for column in self._layout.fixed:
            values, mask = self.slab.values[column.name][first:end], self.slab.masks.get(column.name)
            if column.field is None or column.field.id not in there:
                self._fill_column(column, piece, values, None if mask is None else mask[first:end])
            elif mask is not None:
                mask[first:end] = True
        for field in self._layout.loose:
            piece.cells[field.name] = gather(self._reader.snapshot.schema, field, [piece.want], piece.pages, parse=True)

    def fill_with_nothing(self, piece: Piece) -> None:
        """Stand in for a damaged piece, whose rows are read one by one later."""
        for field in self._layout.loose:
            piece.cells[field.name] = Cells(None, pa.nulls(piece.rows, field.kind.arrow_type))

    def _fill_column(
        self, column: FixedColumn, piece: Piece, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
    ) -> None:
        if column.field is None:
            values[:] = piece.want.fragment.row_ids_at(piece.want.rows)
            return
        found = number_pieces(column.field, piece.want, piece.pages)
        if found is not None:
            done = 0
            for part in found:
                values[done : done + len(part)] = part
                done += len(part)
            if mask is not None:
                mask[:] = True
            return
        cells = gather(self._reader.snapshot.schema, column.field, [piece.want], piece.pages)
        filled = self._reader.values(column.field, cells)
        values[:] = filled.values
        if mask is not None:
            mask[:] = True if filled.mask is None else filled.mask

    def _charge(self, cost: int) -> None:
        self._held_bytes += cost
        gauge = self._gauge  # of all runs of a loader, one after the other
        gauge.window_bytes = self._held_bytes
        gauge.window_peak_bytes = max(gauge.window_peak_bytes, self._held_bytes)
