"""The windows of the tables of a mixture, as one window."""

from collections.abc import Sequence

from penstock.engine.planning import MixedPlannedSpans, MixedSpan, PlannedSpans
from penstock.engine.window._blocks import WindowBlock
from penstock.engine.window._page_cache import PageRuns
from penstock.engine.window._window import Window


class MixedWindow:
    """Routes blocks to the windows of their tables, which share a budget and its lock; see `Window`."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows, self.lock = windows, windows[0].lock
        self._waiting: dict[int, tuple[MixedSpan, int]] = {}
        """Spans that wait for blocks, each with the number of its parts that do, by number."""

    @property
    def reads_into_batch(self) -> bool:
        return any(window.reads_into_batch for window in self._windows)

    def blocks(self, span: MixedSpan) -> list[WindowBlock]:
        """See `Window`, also for the methods below."""
        return [block for part in span.parts for block in self._windows[part.table].blocks(part)]

    def damaged(self, span: MixedSpan) -> list[int]:
        found: list[int] = []
        first = 0
        for part in span.parts:
            found += [first + number for number in self._windows[part.table].damaged(part)]
            first += len(part.blocks)
        return found

    def register(self, planned: MixedPlannedSpans) -> None:
        for window, part in zip(self._windows, planned.tables, strict=True):
            window.register(part)

    def has_open_blocks(self, planned: MixedPlannedSpans) -> bool:
        return any(map(_has_open_blocks, self._windows, planned.tables))

    def admit(self, block: WindowBlock, *, force: bool) -> bool:
        return block.window.admit(block, force=force)

    def await_blocks(self, span: MixedSpan) -> bool:
        waiting = sum(not self._windows[part.table].await_blocks(part) for part in span.parts)
        if waiting:
            self._waiting[span.number] = span, waiting
        return not waiting

    def read(self, block: WindowBlock, number: int) -> tuple[PageRuns, int]:
        return block.window.read(block, number)

    def add_pages(self, block: WindowBlock, number: int, found: PageRuns | BaseException) -> bool:
        return block.window.add_pages(block, number, found)

    def fill(self, block: WindowBlock) -> Sequence[MixedSpan]:
        ready: list[MixedSpan] = []
        parts = block.window.fill(block)
        with self.lock:
            for part in parts:
                span, waiting = self._waiting.pop(part.number)
                if waiting > 1:
                    self._waiting[part.number] = span, waiting - 1
                else:
                    ready.append(span)
        return ready

    def release(self, span: MixedSpan) -> None:
        for part in span.parts:
            self._windows[part.table].release(part)


def _has_open_blocks(window: Window, planned: PlannedSpans) -> bool:
    return window.reads_into_batch and window.has_open_blocks(planned)
