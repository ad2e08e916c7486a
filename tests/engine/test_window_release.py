"""When blocks leave the window: in the order of spans, whatever the order in which these are built."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine._stats import StatsCollector
from penstock.engine.planning import PlannedSpans, Span, TableRows
from penstock.engine.window import Window, WindowBlock
from penstock.engine.window._block_requests import BlockRequest
from penstock.plan import SpanSteps

BLOCK_ROWS, ROW_BYTES = 4, 10


class FakeTable:
    """A table whose blocks are numbers; it has every row of its slab in use exactly while a block holds it."""

    def __init__(self) -> None:
        self.slab, self.arena, self.used = self, None, set[int]()
        self.layout: Any = None

    def new_block(self, plan: Any) -> WindowBlock:
        request = BlockRequest(
            row_pages={},
            slab_range=range(BLOCK_ROWS),
            slab_bytes=BLOCK_ROWS * ROW_BYTES,
            variable_bytes=0,
            sparse=False,
        )
        return WindowBlock(self, plan, request)  # type: ignore[arg-type]

    def allocate(self, rows: int) -> int:
        start = next(start for start in range(0, 10_000, rows) if start not in self.used)
        self.used.add(start)
        return start

    def free(self, start: int, rows: int) -> None:
        assert rows == BLOCK_ROWS
        self.used.remove(start)

    def fill(self, block: WindowBlock) -> None:
        """Nothing is read."""


class FakePlan:
    """A planned block; equal only to itself."""

    whole, parts, rows = None, (), BLOCK_ROWS


def new_span(number: int, plans: list[Any]) -> Span:
    rows = TableRows(
        blocks=plans, block_index=np.arange(len(plans)), rows=np.zeros(len(plans), np.int64), table=0,
        places=slice(None), anchor=None, padding=None, epochs=0, blocks_drawn=len(plans),
    )  # fmt: skip
    return Span(SpanSteps(number, 0, 0, (len(plans),), (len(plans),), True, False), [rows])


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=8), st.integers(0, 5), st.data())
def test_a_block_is_freed_with_the_last_span_that_needs_it_and_all_before(
    needs: list[set[int]], first: int, data: st.DataObject
) -> None:
    table = FakeTable()
    window = Window([table], 1 << 30, collector := StatsCollector())  # type: ignore[list-item]
    plan_of = [FakePlan() for _ in range(10)]
    last_of = {block: max(i for i, used in enumerate(needs) if block in used) for block in set().union(*needs)}
    spans = [new_span(first + i, [plan_of[block] for block in sorted(used)]) for i, used in enumerate(needs)]
    for i, span in enumerate(spans):
        closed = [plan_of[block] for block, last in last_of.items() if last == i]
        window.register(PlannedSpans([span], closed, last=False))  # type: ignore[arg-type]
        for block in window.unadmitted(span):
            assert window.admit(block, force=False)
            assert window.fill(block) == []
        assert window.await_blocks(span)
    left = set(range(len(spans)))
    for i in data.draw(st.permutations(range(len(spans)))):
        with window.lock:
            window.release(spans[i])
        left.remove(i)
        held = sum(1 for last in last_of.values() if left and last >= min(left))
        assert len(table.used) == held
        assert collector.window_bytes == held * BLOCK_ROWS * ROW_BYTES


def test_a_span_waits_for_its_blocks_alone() -> None:
    table = FakeTable()
    window = Window([table], 1 << 30, StatsCollector())  # type: ignore[list-item]
    plans = [FakePlan() for _ in range(3)]
    early, late = new_span(0, plans[:2]), new_span(1, plans[1:])
    window.register(PlannedSpans([early, late], plans, last=True))  # type: ignore[arg-type]
    first, second, third = [*window.unadmitted(early), *list(window.unadmitted(late))[1:]]
    for block in (first, second, third):
        assert window.admit(block, force=False)
    assert not window.await_blocks(early)
    assert not window.await_blocks(late)
    assert window.fill(third) == []
    assert window.fill(second) == [late]
    assert window.fill(first) == [early]
    for span in (late, early):
        with window.lock:
            window.release(span)
    assert not table.used
