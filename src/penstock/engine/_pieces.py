"""Pieces, the parts of a table that are in the window, and spans, the steps that are put together from them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine._selection import Block
from penstock.engine._stats import BadSample
from penstock.table import Cells, PageRequest, Pages, Rows, Wanted


class Places(NamedTuple):
    """A column of a span's batches that is read straight to there."""

    values: npt.NDArray[Any]
    memory: memoryview
    """The same as bytes."""
    row_bytes: int

    def row(self, index: int) -> memoryview:
        """The place of one row."""
        return self.memory[index * self.row_bytes : (index + 1) * self.row_bytes]


class EncodedRows(NamedTuple):
    """The encoded values of a column, by row, where they lie in pages; views of them all would be many objects."""

    memory: list[Any]
    """None where there is no value."""
    starts: list[int]
    ends: list[int]

    def row(self, index: int) -> Any:
        """The bytes of one value, or None."""
        memory = self.memory[index]
        return None if memory is None else memory[self.starts[index] : self.ends[index]]


class Piece:
    """A block in the window: asked for, then filled, then read by spans, then freed."""

    __slots__ = (
        "admitted", "again", "block", "bytes", "cells", "closed", "encoded", "error", "filled", "goes", "light",
        "missing", "pages", "placeable", "placed", "raw_bytes", "requests", "row_start", "rows", "spans", "straight",
        "taken", "twice", "unread", "waiting", "want",
    )  # fmt: skip

    def __init__(self, block: Block, unread: int | None = None) -> None:
        """`unread` of its rows are to come, if others were read before a resume."""
        self.again: Rows | None = None
        """For each row of the block its row here, where some are chosen more than once."""
        if not isinstance(block.chosen, range) and not (block.chosen[1:] > block.chosen[:-1]).all():
            _, firsts, self.again = np.unique(block.chosen, return_index=True, return_inverse=True)
            block = block.pick(firsts)
        self.block, self.rows = block, len(block)
        self.unread = self.rows if unread is None else unread
        self.want = Wanted(block.fragment, block.stored_rows)
        self.requests: list[PageRequest] = []
        self.straight: dict[int, range] = {}
        """Requests, by their numbers, that are read straight into the slab: the rows that they fill."""
        self.taken = range(self.rows)
        """Its rows in the slab, with those that are read because they share a page with the first or the last."""
        self.light: dict[int, npt.NDArray[Any]] = {}
        """Columns of numbers, by field id, that were there before the piece was asked for."""
        self.raw_bytes = self.bytes = 0
        """Bytes of pages that wait to be put in their places, and bytes it takes in the window."""
        self.row_start = 0
        """Its first row in the slab."""
        self.goes: dict[int, tuple[Span, int]] = {}
        """Where each row goes, if spans have told: a row of theirs."""
        self.twice = False
        """Whether some row goes to two places."""
        self.placeable = self.placed = False
        """Whether large rows can be read straight to where they go, and whether they are, and not into the slab."""
        self.pages = Pages()
        self.missing = 0
        """Requests that have not been answered."""
        self.cells: dict[str, Cells] = {}
        """Columns that are not in the slab."""
        self.encoded: dict[str, EncodedRows] = {}
        """Where their encoded values are, once somebody has asked for them."""
        self.filled = False
        self.error: BaseException | None = None
        self.closed = False
        """Whether no span to come needs it."""
        self.admitted = False
        self.spans = 0
        """Spans that need it and have not been put together."""
        self.waiting: list[Span] = []

    @property
    def told(self) -> bool:
        """Whether each row that is to come goes to one place, and that is known."""
        return not self.twice and len(self.goes) == self.unread


@dataclass(slots=True, eq=False, kw_only=True)
class Span:
    """Some steps in a row, of one rank, that are put together at once."""

    number: int
    epoch: int
    batch_rows: list[int]
    """Rows of each of its batches."""
    consumed: list[int]
    """Positions that all ranks have read when each batch has been delivered."""
    last: bool
    """Whether the epoch ends with it."""
    pieces: list[Piece]
    """Those that it needs."""
    which: Rows
    """For each row the number of the piece that holds it, …"""
    rows: Rows
    """… and its row there."""
    padding: npt.NDArray[np.bool_] | None
    """Rows that only fill up the epoch's last step."""
    blocks_drawn: int
    """Blocks that each batch draws from, added up."""
    missing: int = 0
    """Pieces that are not filled."""
    bad: list[tuple[int, BadSample]] = field(default_factory=list)
    """Rows that were replaced."""
    placed: "dict[str, Places]" = field(default_factory=dict)
    """Columns to whose places rows are on their way."""

    def tell(self) -> None:
        """Let the pieces know where their rows go."""
        for index, (number, row) in enumerate(zip(self.which.tolist(), self.rows.tolist(), strict=True)):
            piece = self.pieces[number]
            if row in piece.goes:
                piece.twice = True
            piece.goes[row] = self, index

    def position(self, index: int) -> int:
        """Where in the table a row is."""
        return self.pieces[int(self.which[index])].block.position(int(self.rows[index]))

    @property
    def row_ids(self) -> Rows:
        """The ids of all rows."""
        ids = np.empty(len(self.which), np.int64)
        for number, piece in enumerate(self.pieces):
            here = self.which == number
            ids[here] = piece.want.fragment.row_ids_at(piece.want.rows[self.rows[here]])
        return ids

    @property
    def slab_rows(self) -> Rows:
        """Where in the slab each row is."""
        starts = np.array([piece.row_start for piece in self.pieces], np.int64)
        return starts[self.which] + self.rows
