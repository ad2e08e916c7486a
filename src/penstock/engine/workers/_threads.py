"""A run in threads of this process."""

import numpy as np

from penstock.engine.assembly import BuiltBatches
from penstock.engine.workers._pipeline import Pipeline
from penstock.engine.workers._share import DeliveredSpan


class ThreadedRun:
    """Delivers the spans of a pipeline; see `SpanStream`."""

    def __init__(self, pipeline: Pipeline[BuiltBatches]) -> None:
        self._pipeline = pipeline
        self.start, self.resume, self.pause, self.stop = (
            pipeline.start,
            pipeline.resume,
            pipeline.pause,
            pipeline.stop,
        )

    def next_span(self) -> DeliveredSpan | None:
        """See `SpanStream`."""
        found = self._pipeline.next_span()
        if found is None:
            return None
        span, (batches, bad) = found
        padding = 0 if span.padding is None else int(np.count_nonzero(span.padding))
        return DeliveredSpan(span.steps, batches, bad, span.blocks_drawn, padding)
