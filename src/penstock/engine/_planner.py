"""From an epoch's order to spans and the pieces they need; no I/O but for the manifests on the way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine._lanes import LaneBlock, LaneCursor, PartBlocks, walk
from penstock.engine._pieces import Piece, Span
from penstock.engine._selection import Block, Selection
from penstock.plan import Dealer, Epoch, Order
from penstock.storage import run_all
from penstock.table import Rows

_MANIFEST_READERS = 32
_SECTIONS_KEPT = 64
_FIRST_STEPS = 8


Cut = Callable[[int, int], list[Block]]
"""The blocks of a part of a section, in the table's order."""


@dataclass(frozen=True)
class PlanOptions:
    """What a plan depends on beside the order."""

    span_rows: int
    """Rows that are put together at once, at least one batch."""
    stretch_rows: int
    """Rows that are planned at once, at least a span."""
    by_blocks: bool
    """Whether whole blocks are read and kept, or only the pages of the rows that a span needs."""
    trim: bool
    """Whether rows that were read before a resume may be left out of a block."""
    tell: bool
    """Whether pieces are told where their rows go."""


class Found(NamedTuple):
    """Where some positions are."""

    pieces: list[Piece]
    which: Rows
    """For each position the number of its piece, …"""
    rows: Rows
    """… and its row there."""


class Stretch(NamedTuple):
    """Spans that were planned together, and the pieces that no later one needs."""

    spans: list[Span]
    closing: list[Piece]

    @property
    def open(self) -> bool:
        """Whether a later stretch may need some of its pieces."""
        return not all(piece.closed for span in self.spans for piece in span.pieces)


class Planner:
    """Makes spans, epoch after epoch."""

    def __init__(self, selection: Selection, order: Order, dealer: Dealer, options: PlanOptions) -> None:
        self._selection, self._order, self._dealer, self._options = selection, order, dealer, options
        self._cut: Cut = lru_cache(_SECTIONS_KEPT)(partial(selection.blocks, order.shuffle))
        """Blocks are cut alike in every epoch."""
        self._numbers = 0

    def stretches(self, number: int, consumed: int) -> Iterator[Stretch]:
        """The spans of an epoch from a position on, in stretches that are planned together."""
        epoch = self._epoch(number)
        dealer, batch = self._dealer, self._dealer.batch_size
        full, steps = dealer.full_steps(consumed), dealer.steps(consumed)
        course = self._course(epoch, first=not self._numbers)
        per_span = max(1, self._options.span_rows // batch)
        most = max(per_span, self._options.stretch_rows // batch)
        step, size = 0, min(per_span, _FIRST_STEPS)
        while step < full:
            count = min(size, full - step)
            start = consumed + step * dealer.step_rows
            ends = range(start + dealer.step_rows, start + count * dealer.step_rows + 1, dealer.step_rows)
            found = course.find(dealer.positions(start, count).reshape(-1))
            step += count
            of_span = min(per_span, size)
            size = min(2 * size, most)  # the first batch need not wait for a long plan, nor for many others
            yield self._stretch(epoch, course, found, None, [batch] * count, list(ends), of_span, step == steps)
        if steps > full:
            positions, padding = dealer.last(consumed + full * dealer.step_rows)
            found = course.find(positions, again=True)
            yield self._stretch(epoch, course, found, padding, [len(positions)], [epoch.rows], 1, True)

    def _epoch(self, number: int) -> Epoch:
        shuffle = self._order.shuffle
        reach = round(shuffle.spread * self._selection.block_rows(shuffle)) if self._order.shuffled else 0
        lanes = min(shuffle.lanes, max(1, self._order.rows))
        return Epoch(self._selection.section_rows, lanes, reach, self._order.seed, number, self._order.shuffled)

    def _course(self, epoch: Epoch, *, first: bool) -> "_Course":
        if self._selection.scattered:
            return _Scattered(self._selection, epoch)
        if self._options.by_blocks:
            return _ByBlocks(self._selection, self._cut, epoch, trim=self._options.trim and first)
        return _ByRows(self._selection, self._cut, epoch, trim=False)

    def _stretch(
        self,
        epoch: Epoch,
        course: "_Course",
        found: Found,
        padding: npt.NDArray[np.bool_] | None,
        batch_rows: list[int],
        consumed: list[int],
        per_span: int,
        last: bool,
    ) -> Stretch:
        spans: list[Span] = []
        row = 0
        place = np.empty(len(found.pieces), np.int64)
        for first in range(0, len(batch_rows), per_span):
            mine = batch_rows[first : first + per_span]
            here = slice(row, row + sum(mine))
            row = here.stop
            needed = np.flatnonzero(np.bincount(found.which[here]))
            place[needed] = np.arange(len(needed))
            which = place[found.which[here]]
            spans.append(
                Span(
                    number=self._numbers,
                    epoch=epoch.number,
                    batch_rows=mine,
                    consumed=consumed[first : first + per_span],
                    last=last and row == len(found.which),
                    pieces=[found.pieces[number] for number in needed.tolist()],
                    which=which,
                    rows=found.rows[here],
                    padding=padding,
                    blocks_drawn=_blocks_drawn(which, mine, len(needed)),
                )
            )
            self._numbers += 1
        if self._options.tell:
            for span in spans:
                span.tell()
        return Stretch(spans, course.closing() + (course.open() if last else []))


def _blocks_drawn(which: Rows, batch_rows: list[int], pieces: int) -> int:
    """Blocks that each batch of a span draws from, added up."""
    batch = np.repeat(np.arange(len(batch_rows)), batch_rows)
    return int(np.count_nonzero(np.bincount(batch * pieces + which)))


class _Course:
    """Finds the pieces that hold an epoch's positions, one run of them after the other."""

    def find(self, positions: Rows, *, again: bool = False) -> Found:
        """The pieces that hold some positions; `again` says that some may be there twice."""
        raise NotImplementedError

    def closing(self) -> list[Piece]:
        """The pieces that nobody needs after what was found last."""
        raise NotImplementedError

    def open(self) -> list[Piece]:
        """The pieces that are still needed."""
        return []


class _Scattered(_Course):
    """Rows in an order of their own: each span reads the pages of its rows."""

    def __init__(self, selection: Selection, epoch: Epoch) -> None:
        self._selection, self._epoch = selection, epoch
        self._found: list[Piece] = []

    def closing(self) -> list[Piece]:
        return self._found

    def find(self, positions: Rows, *, again: bool = False) -> Found:  # noqa: ARG002
        wanted, inverse = np.unique(self._selection.positions(positions), return_inverse=True)
        which, rows = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        pieces: list[Piece] = []
        for block, inside in self._selection.scatter(wanted):
            which[inside], rows[inside] = len(pieces), np.arange(len(inside))
            pieces.append(Piece(block))
        self._found = pieces
        return Found(pieces, which[inverse], rows[inverse])


class _Laned(_Course):
    """A cursor for each lane that the positions are in."""

    def __init__(self, selection: Selection, cut: Cut, epoch: Epoch, trim: bool) -> None:
        self._selection, self._epoch = selection, epoch
        self._trim = trim
        self._cursors: dict[int, LaneCursor] = {}
        self._source = _KeptBlocks(selection, epoch, cut)
        self._done: list[Piece] = []

    def closing(self) -> list[Piece]:
        done, self._done = self._done, []
        return done

    def find(self, positions: Rows, *, again: bool = False) -> Found:
        lanes = self._epoch.lanes
        which, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        pieces: list[Piece] = []
        by_lane = list(self._by_lane(positions))
        self._enter([(lane, positions[here] // lanes) for lane, here in by_lane if lane not in self._cursors])
        for lane, here in by_lane:
            turns = positions[here] // lanes
            back = None
            if again:
                turns, back = np.unique(turns, return_inverse=True)
            found = self._lane(lane, turns)
            which[here] = (found.which if back is None else found.which[back]) + len(pieces)
            rows[here] = found.rows if back is None else found.rows[back]
            pieces += found.pieces
        return Found(pieces, which, rows)

    def _enter(self, fresh: Sequence[tuple[int, Rows]]) -> None:
        """Have a cursor for each of some lanes; many at once, because each may have to fetch manifests."""
        if len(fresh) > 1 and self._selection.coarse:
            cursors = run_all(lambda new: self._cursor(*new), fresh, max_workers=_MANIFEST_READERS)
            self._cursors.update(zip((lane for lane, _ in fresh), cursors, strict=True))

    def _by_lane(self, positions: Rows) -> Iterator[tuple[int, slice | Rows]]:
        """Which of the positions are in each lane."""
        lanes = self._epoch.lanes
        stride = int(positions[1] - positions[0]) if len(positions) > 1 else 1
        if stride > 0 and lanes % stride == 0 and (np.diff(positions) == stride).all():
            period = lanes // stride  # one rank's positions: they come round to the same lane again and again
            for first, lane in enumerate((positions[:period] % lanes).tolist()):
                yield lane, slice(first, None, period)
            return
        in_lane = positions % lanes
        order = np.argsort(in_lane, kind="stable")
        bounds = np.flatnonzero(np.diff(in_lane[order], prepend=-1, append=-1)).tolist()
        for first, end in pairwise(bounds):
            yield int(in_lane[order[first]]), order[first:end]

    def _lane(self, lane: int, turns: Rows) -> Found:
        """Pieces of one lane for some turns of it, rising."""
        cursor = self._cursors.get(lane)
        if cursor is None or cursor.passed > turns[0]:
            cursor = self._cursors[lane] = self._cursor(lane, turns)
        found = self._pieces(lane, *cursor.take(turns))
        self._close(lane, int(turns[-1]))
        return found

    def _cursor(self, lane: int, turns: Rows) -> LaneCursor:
        """One that begins with some turns of a lane, rising."""
        start = self._epoch.lane_start(lane)
        spread = self._epoch.lane_order(lane)

        def blocks(first: int, end: int) -> Iterator[tuple[Block, int, int]]:
            for block, here, stop in walk(self._epoch, self._source, start + first, start + end):
                yield block, here - start, stop - start

        return LaneCursor(spread, blocks, int(turns[0]), int(turns[-1]), self._selection.cuts if self._trim else None)

    def _pieces(self, lane: int, blocks: list[LaneBlock], holders: Rows, rows: Rows) -> Found:
        raise NotImplementedError

    def _close(self, lane: int, turn: int) -> None:
        """A lane has come past a turn."""


class _KeptBlocks:
    """The blocks of an epoch; those that were asked for last are kept, because lanes share sections."""

    def __init__(self, selection: Selection, epoch: Epoch, cut: Cut) -> None:
        self.parts = lru_cache(_SECTIONS_KEPT)(partial(selection.parts, epoch))
        self.blocks = lru_cache(_SECTIONS_KEPT)(partial(_ordered, epoch, cut))


def _ordered(epoch: Epoch, cut: Cut, section: int, part: int) -> PartBlocks:
    blocks = cut(section, part)
    ordered = [blocks[number] for number in epoch.block_order(section, part, len(blocks)).tolist()]
    return PartBlocks(ordered, np.cumsum([len(block) for block in ordered]))


class _ByBlocks(_Laned):
    """Whole blocks, each read once and kept until its last row has been read."""

    def __init__(self, selection: Selection, cut: Cut, epoch: Epoch, trim: bool) -> None:
        super().__init__(selection, cut, epoch, trim)
        self._open: dict[int, dict[LaneBlock, Piece]] = {}

    def open(self) -> list[Piece]:
        return [piece for opened in self._open.values() for piece in opened.values()]

    def _pieces(self, lane: int, blocks: list[LaneBlock], holders: Rows, rows: Rows) -> Found:
        opened = self._open.setdefault(lane, {})
        used = np.flatnonzero(np.bincount(holders))
        known = [blocks[number] for number in used.tolist()]
        number = np.empty(len(blocks), np.int64)
        number[used] = np.arange(len(used))
        which = number[holders]
        local = rows - np.array([block.first for block in known])[which]
        pieces: list[Piece] = []
        for index, block in enumerate(known):
            piece = opened.get(block)
            if piece is None:
                piece = opened[block] = Piece(block.block, block.unread)
            if piece.again is not None:
                here = which == index
                local[here] = piece.again[local[here]]
            pieces.append(piece)
        return Found(pieces, which, local)

    def _close(self, lane: int, turn: int) -> None:
        opened = self._open[lane]
        for known in [known for known in opened if 0 <= known.closes <= turn]:
            self._done.append(opened.pop(known))


class _ByRows(_Laned):
    """Only the pages of the rows that a span needs, for a window that does not fit in memory, or for shared blocks."""

    def _pieces(self, lane: int, blocks: list[LaneBlock], holders: Rows, rows: Rows) -> Found:  # noqa: ARG002
        used, which = np.unique(holders, return_inverse=True)
        pieces: list[Piece] = []
        local = np.empty(len(rows), np.int64)
        for index, number in enumerate(used.tolist()):
            here = np.flatnonzero(which == index)
            whole = blocks[number].block
            inside, local[here] = np.unique(rows[here] - blocks[number].first, return_inverse=True)
            piece = Piece(whole.pick(inside))
            if piece.again is not None:
                local[here] = piece.again[local[here]]
            pieces.append(piece)
        self._done += pieces
        return Found(pieces, which, local)
