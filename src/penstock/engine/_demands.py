"""What a block asks of a store and of the window's memory; worked out once for all epochs."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy.typing as npt

from penstock.engine._kept import KeptPages
from penstock.engine._pieces import Piece
from penstock.engine._selection import Block
from penstock.engine._slab import FixedColumn, Layout
from penstock.format import Field
from penstock.format.kinds import Linked
from penstock.table import PageRequest, Wanted, page_requests, row_range

_BLOCKS_KNOWN = 16 << 10


class Demand(NamedTuple):
    """What a block takes."""

    requests: Sequence[PageRequest]
    straight: dict[int, range]
    """Those that are read straight to where the rows go, by their numbers: the rows that they fill."""
    taken: range
    """Its rows, and those that are read with them though nobody wants them: before 0, and behind the last."""
    kept: Sequence[PageRequest]
    """What may have been read already, for others."""
    light: dict[int, npt.NDArray[Any]]
    """Columns of numbers that are known to be there, by field id."""
    bytes: int
    """What it takes in the window, without the columns that are placed."""
    raw_bytes: int
    """Pages that wait to be put in their places."""
    placeable: bool
    """Whether the columns that are placed are all read straight."""


class Demands:
    """Of the blocks of some columns."""

    def __init__(
        self,
        layout: Layout,
        *,
        in_slab: Sequence[FixedColumn],
        placed: Sequence[FixedColumn],
        heavy: Field | None,
        kept: KeptPages | None,
        straight: bool,
    ) -> None:
        """`straight` says that pages of numbers can be read straight to where the rows go."""
        self._kept, self._heavy_id, self._reads_straight = kept, heavy.id if heavy else 0, straight
        self._ids = [field.id for field in layout.fields]
        self._loose_ids = {field.id for field in layout.loose}
        self._placed_ids = {column.field.id for column in placed if column.field is not None}
        numbers = [column.field for column in layout.fixed if column.field is not None]
        self._bare = [(field.id, field.stored_bytes) for field in numbers if field.stored_bytes]
        self._row_bytes = sum(column.row_bytes for column in in_slab) + sum(
            field.kind.typical_bytes for field in layout.loose if isinstance(field.kind, Linked)
        )
        self._known = lru_cache(_BLOCKS_KNOWN)(self._work_out)

    def of(self, piece: Piece) -> Demand:
        """What a piece takes."""
        if isinstance(piece.block.chosen, range):  # such a block is the same one in every epoch
            return self._known(piece.block)
        return self._work_out(piece.block)

    def is_kept(self, request: PageRequest) -> bool:
        """Whether others may need what is asked for, so that it is kept."""
        return self._kept is not None and self._heavy_id not in request.file.fields

    def _work_out(self, block: Block) -> Demand:
        want = Wanted(block.fragment, block.stored_rows)
        kept: list[PageRequest] = []
        requests: list[PageRequest] = []
        for request in page_requests([want], self._ids):
            if self._kept is not None and self.is_kept(request):
                kept += self._kept.groups(request)
            else:
                requests.append(request)
        straight = self._straight(requests, want) if self._reads_straight else {}
        starts, stops = zip((0, len(block)), *((part.start, part.stop) for part in straight.values()), strict=True)
        taken = range(min(starts), max(stops))
        loose = sum(request.bytes for request in requests if self._loose_ids.intersection(request.file.fields))
        return Demand(
            requests,
            straight,
            taken,
            kept,
            {},
            bytes=loose + len(taken) * self._row_bytes,
            raw_bytes=sum(request.bytes for number, request in enumerate(requests) if number not in straight),
            placeable=self._placed_ids <= {requests[number].file.fields[0] for number in straight},
        )

    def _straight(self, requests: Sequence[PageRequest], want: Wanted) -> dict[int, range]:
        """The requests that can be read straight to their places; of a column, all or none.

        A block is cut along pages of the heaviest column; so where one of its ends is left out, what is read with the
        rest takes no more room than the whole block.
        """
        found: dict[int, range] = {}
        wanted = range(len(want.rows))
        for field_id, row_bytes in self._bare:
            mine = [n for n, request in enumerate(requests) if request.file.fields == (field_id,)]
            rows = [row_range(requests[number], field_id, row_bytes, want) for number in mine]
            parts = [part for part in rows if part is not None]
            if not parts or len(parts) < len(mine):
                continue
            filled = range(parts[0].start, parts[-1].stop)
            gapless = sum(map(len, parts)) == len(filled)
            enough = filled.start <= 0 and wanted.stop <= filled.stop and field_id == self._heavy_id
            if gapless and (filled == wanted or enough):
                found.update(zip(mine, parts, strict=True))
        return found
