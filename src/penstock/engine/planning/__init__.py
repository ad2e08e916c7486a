"""Which rows are read when: selections, blocks, and spans of steps."""

from penstock.engine.planning._columns import FixedColumn, Layout
from penstock.engine.planning._planner import PlannedSpans, Planner, PlanOptions
from penstock.engine.planning._row_sizes import compaction_advice
from penstock.engine.planning._selection import Block, Selection
from penstock.engine.planning._spans import PlannedBlock, Span
from penstock.engine.planning._weighted import make_selection

__all__ = [
    "Block",
    "FixedColumn",
    "Layout",
    "PlanOptions",
    "PlannedBlock",
    "PlannedSpans",
    "Planner",
    "Selection",
    "Span",
    "compaction_advice",
    "make_selection",
]
