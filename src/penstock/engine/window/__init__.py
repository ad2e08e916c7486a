"""The shuffle window: reads blocks and holds them in memory, within a budget."""

from penstock.engine.window._arena import Arena, arena_bytes
from penstock.engine.window._block_requests import reads_by_row
from penstock.engine.window._fetch import Fetcher, Request
from penstock.engine.window._page_cache import PageCache, PageRuns
from penstock.engine.window._rows import BlockColumns, EncodedRows, WindowRows
from penstock.engine.window._slab import MAX_READERS, DeviceSlab, Slab, SlabColumns, TableMemory, on_device, reader_rows
from penstock.engine.window._table_window import TableReads, TableWindow, WindowBlock, null_columns
from penstock.engine.window._tasks import BuildTask, TableTask, joined_keys, read_task, write_task
from penstock.engine.window._window import Window, WindowBudget

__all__ = [
    "MAX_READERS",
    "Arena",
    "BlockColumns",
    "BuildTask",
    "DeviceSlab",
    "EncodedRows",
    "Fetcher",
    "PageCache",
    "PageRuns",
    "Request",
    "Slab",
    "SlabColumns",
    "TableMemory",
    "TableReads",
    "TableTask",
    "TableWindow",
    "Window",
    "WindowBlock",
    "WindowBudget",
    "WindowRows",
    "arena_bytes",
    "joined_keys",
    "null_columns",
    "on_device",
    "read_task",
    "reader_rows",
    "reads_by_row",
    "write_task",
]
