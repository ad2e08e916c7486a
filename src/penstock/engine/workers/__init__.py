"""Runs shares of a rank's rows: in threads, or in worker processes that each own some lanes."""

from penstock.engine.workers._counts import WorkerCounts, choose_workers
from penstock.engine.workers._pool import ProcessPool, worker_formatter
from penstock.engine.workers._process_run import ProcessRun
from penstock.engine.workers._share import (
    DeliveredSpan,
    LoaderSource,
    PipelineOptions,
    ShareEngine,
    SpanStream,
    TableOptions,
    TableSource,
)
from penstock.engine.workers._threads import ThreadedRun

__all__ = [
    "DeliveredSpan",
    "LoaderSource",
    "PipelineOptions",
    "ProcessPool",
    "ProcessRun",
    "ShareEngine",
    "SpanStream",
    "TableOptions",
    "TableSource",
    "ThreadedRun",
    "WorkerCounts",
    "choose_workers",
    "worker_formatter",
]
