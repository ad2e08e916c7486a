"""The shuffle window: reads blocks and holds them in memory, within a budget."""

from penstock.engine.window._block_requests import reads_by_row
from penstock.engine.window._rows import BlockColumns, EncodedRows, WindowRows
from penstock.engine.window._slab import MAX_READERS, DeviceSlab, Slab, SlabColumns, on_device
from penstock.engine.window._table_window import TableWindow, WindowBlock, null_columns
from penstock.engine.window._tasks import BuildTask, TableTask, joined_keys, read_task, write_task
from penstock.engine.window._window import Window

__all__ = [
    "MAX_READERS",
    "BlockColumns",
    "BuildTask",
    "DeviceSlab",
    "EncodedRows",
    "Slab",
    "SlabColumns",
    "TableTask",
    "TableWindow",
    "Window",
    "WindowBlock",
    "WindowRows",
    "joined_keys",
    "null_columns",
    "on_device",
    "read_task",
    "reads_by_row",
    "write_task",
]
