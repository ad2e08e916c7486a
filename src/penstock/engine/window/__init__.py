"""The shuffle window: reads blocks and holds them in memory, within a budget."""

from penstock.engine.window._blocks import BatchMemory, EncodedRows, PooledBatches, PreallocatedColumn, WindowBlock
from penstock.engine.window._fetch import Fetcher, Request
from penstock.engine.window._page_cache import PageCache, PageRuns
from penstock.engine.window._slab import DeviceSlab, Slab, on_device, reads_into_batch
from penstock.engine.window._window import Window

__all__ = [
    "BatchMemory",
    "DeviceSlab",
    "EncodedRows",
    "Fetcher",
    "PageCache",
    "PageRuns",
    "PooledBatches",
    "PreallocatedColumn",
    "Request",
    "Slab",
    "Window",
    "WindowBlock",
    "on_device",
    "reads_into_batch",
]
