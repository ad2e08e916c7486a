"""A live picture of a loader, in one line or as a table."""

import time
from collections.abc import Callable
from typing import Literal

from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from penstock.engine._stats import LoaderStats

Display = Literal["line", "table"]

_EVERY_S = 0.5


class Live:
    """Shows what a loader does, if asked to, while an epoch is read."""

    def __init__(self, display: Display | None, stats: Callable[[], LoaderStats], steps: int) -> None:
        self._display, self._stats, self._steps = display, stats, steps
        self._done, self._next_s = 0, 0.0
        self._live: RichLive | None = None
        if display is not None:
            self._live = RichLive(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> "Live":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._show()
            self._live.stop()

    def tick(self) -> None:
        """A batch has been delivered."""
        self._done += 1
        if self._live is not None and time.monotonic() >= self._next_s:
            self._show()

    def _show(self) -> None:
        assert self._live is not None
        self._next_s = time.monotonic() + _EVERY_S
        stats = self._stats()
        line = (
            f"step {self._done:,}/{self._steps:,}  {stats.rows_per_s:,.0f} rows/s  "
            f"{stats.bytes / max(stats.seconds, 1e-9) / 1e6:,.0f} MB/s  {stats.bottleneck}"
        )
        self._live.update(_table(stats, line) if self._display == "table" else Text(line), refresh=True)


def _table(stats: LoaderStats, line: str) -> Table:
    table = Table("stage", "busy s", "starved s", "blocked s", caption=line, caption_justify="left")
    for name, stage in stats.stages.items():
        table.add_row(name, f"{stage.busy_s:.1f}", f"{stage.starved_s:.1f}", f"{stage.blocked_s:.1f}")
    return table
