"""A live progress display of a loader: one line, or a table."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

from penstock.engine._stats import LoaderStats

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.table import Table
    from rich.text import Text

Progress = Literal["line", "table"]

_REFRESHES_PER_S = 2.0


class ProgressDisplay:
    """Shows a loader's progress while it is iterated; does nothing if `progress` is None.

    A thread refreshes it, so that it changes also while the loop waits for a batch.
    """

    def __init__(
        self, progress: Progress | None, stats: Callable[[], LoaderStats], steps: int | None, done: int
    ) -> None:
        """Of `steps` batches, `done` were delivered before."""
        self._progress, self._stats, self._steps, self._done = progress, stats, steps, done
        self._live: RichLive | nullcontext[None] = nullcontext()
        if progress is not None:
            from rich.console import Console  # worker processes would import it too
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True), get_renderable=self._render, refresh_per_second=_REFRESHES_PER_S
            )

    def __enter__(self) -> "ProgressDisplay":
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def tick(self) -> None:
        """Count a delivered batch."""
        self._done += 1

    def _render(self) -> "Table | Text":
        from rich.text import Text

        stats = self._stats()
        total = "" if self._steps is None else f"/{self._steps:,}"
        line = (
            f"step {self._done:,}{total}  {stats.rows_per_s:,.0f} rows/s  "
            f"{stats.bytes / max(stats.seconds, 1e-9) / 1e6:,.0f} MB/s  {stats.bottleneck}"
        )
        return _table(stats, line) if self._progress == "table" else Text(line)


def _table(stats: LoaderStats, line: str) -> "Table":
    from rich.table import Table

    table = Table("stage", "busy s", "starved s", "blocked s", caption=line, caption_justify="left")
    for name, stage in stats.stages.items():
        table.add_row(name, f"{stage.busy_s:.1f}", f"{stage.starved_s:.1f}", f"{stage.blocked_s:.1f}")
    return table
