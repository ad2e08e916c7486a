"""Which steps of a rank are built together."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.plan._partition import RankPartitioner
from penstock.plan._steps import SpanSteps


@dataclass(frozen=True, slots=True)
class Schedule:
    """The spans of a rank."""

    partitioner: RankPartitioner
    steps_per_span: int

    def run(self, epoch: int, consumed: int, number: int = 0) -> Iterator[SpanSteps]:
        """The spans from a position of an epoch on, counted from `number`, and those of all later epochs."""
        while True:
            span = None
            for span in self._spans(epoch, consumed, number):
                yield span
            if span is None and not consumed:
                return
            epoch, consumed = epoch + 1, 0
            number = number if span is None else span.number + 1

    def _spans(self, epoch: int, consumed: int, number: int) -> Iterator[SpanSteps]:
        partitioner, each = self.partitioner, self.partitioner.step_rows
        full, steps = partitioner.full_steps(consumed), partitioner.steps(consumed)
        step, size = 0, 1  # one at first, so that the first batch comes early
        while step < steps:
            complete = step < full
            count = min(size, full - step) if complete else 1
            start = consumed + step * each
            ends = tuple(min(start + (k + 1) * each, partitioner.rows) for k in range(count))
            rows = (partitioner.batch_size,) * count
            if not complete and partitioner.world.num_ranks == 1:
                rows = (partitioner.rows - start,)
            step, size, number = step + count, min(2 * size, self.steps_per_span), number + 1
            yield SpanSteps(number - 1, epoch, start, rows, ends, complete, step == steps)
