"""The shuffle window: reads blocks and holds them in memory, within a budget."""

from penstock.engine.window._rows import WindowRows
from penstock.engine.window._table_window import TableWindow, WindowBlock
from penstock.engine.window._tasks import BuildTask, TableTask, joined_keys
from penstock.engine.window._window import Window

__all__ = [
    "BuildTask",
    "TableTask",
    "TableWindow",
    "Window",
    "WindowBlock",
    "WindowRows",
    "joined_keys",
]
