"""The shuffle window: reads blocks and holds them in memory, within a budget."""

from penstock.engine.window._blocks import (
    BatchMemory,
    EncodedRows,
    MixedBatches,
    PooledBatches,
    PreallocatedColumn,
    WindowBlock,
)
from penstock.engine.window._fetch import Fetcher, Request
from penstock.engine.window._mixed import MixedWindow
from penstock.engine.window._page_cache import PageCache, PageRuns
from penstock.engine.window._slab import DeviceSlab, RowsAt, Slab, on_device, reads_into_batch
from penstock.engine.window._window import Window, WindowBudget

__all__ = [
    "BatchMemory",
    "DeviceSlab",
    "EncodedRows",
    "Fetcher",
    "MixedBatches",
    "MixedWindow",
    "PageCache",
    "PageRuns",
    "PooledBatches",
    "PreallocatedColumn",
    "Request",
    "RowsAt",
    "Slab",
    "Window",
    "WindowBlock",
    "WindowBudget",
    "on_device",
    "reads_into_batch",
]
