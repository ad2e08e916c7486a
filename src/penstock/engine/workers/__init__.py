"""Reads and builds the rows of a rank: in threads, or in a process that reads and others that build."""

from penstock.engine.workers._counts import WorkerCounts, choose_workers
from penstock.engine.workers._pool import ProcessPool
from penstock.engine.workers._process_run import ProcessRun
from penstock.engine.workers._source import LoaderSource, PipelineOptions, TableOptions
from penstock.engine.workers._threads import ThreadedRun

__all__ = [
    "LoaderSource",
    "PipelineOptions",
    "ProcessPool",
    "ProcessRun",
    "TableOptions",
    "ThreadedRun",
    "WorkerCounts",
    "choose_workers",
]
