"""Spans cover the steps of a rank, and workers partition the rows of spans."""

from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import RankPartitioner, Schedule
from penstock.types import World

worlds = st.integers(1, 9)
lanes = st.one_of(st.sampled_from((1, 2, 4, 8, 24, 96)), st.integers(1, 40))
steady = settings(deadline=None)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    ranks = draw(worlds)
    rows = draw(st.integers(1, 3000))
    partitioner = RankPartitioner(
        rows,
        min(draw(lanes), rows),
        World(draw(st.integers(0, ranks - 1)), ranks),
        draw(st.integers(1, 40)),
        draw(st.booleans()),
    )
    return Schedule(partitioner, draw(st.integers(1, 30)))


@given(schedules(), st.integers(0, 3000), st.integers(0, 5))
@steady
def test_spans_are_the_steps_of_an_epoch_and_then_of_the_next(schedule: Schedule, consumed: int, number: int) -> None:
    partitioner = schedule.partitioner
    consumed = min(consumed, partitioner.rows)
    spans = list(islice(schedule.run(7, consumed, number), 400))
    assert [span.number for span in spans] == list(range(number, number + len(spans)))
    assert not spans or len(spans[0].batch_rows) == 1, "so that the first batch comes early"
    for epoch, start in ((7, consumed), (8, 0)):
        mine = [span for span in spans if span.epoch == epoch]
        if not mine or not mine[-1].last:  # an epoch without steps, or more spans than were taken
            continue
        steps = partitioner.steps(start)
        assert sum(len(span.batch_rows) for span in mine) == steps
        assert [span.last for span in mine] == [False] * (len(mine) - 1) + [True]
        ends = [end for span in mine for end in span.consumed]
        assert ends == [min(start + (k + 1) * partitioner.step_rows, partitioner.rows) for k in range(steps)]
        assert [span.start for span in mine] == [start, *(span.consumed[-1] for span in mine[:-1])]
        for span in mine:
            positions, padding = partitioner.span_positions(span)
            [rows] = partitioner.source_rows(span)
            assert np.array_equal(rows.numbers, span.epoch * partitioner.rows + positions)
            assert len(positions) == span.rows <= schedule.steps_per_span * partitioner.batch_size
            assert span.complete == (padding is None)
