"""Which rows are read when: selections, blocks, and spans of steps."""

from penstock.engine.planning._columns import FixedColumn, Layout
from penstock.engine.planning._mixed import MixedPlannedSpans, MixedPlanner, MixedSpan
from penstock.engine.planning._planner import PlannedSpans, Planner, PlanOptions
from penstock.engine.planning._row_sizes import compaction_advice
from penstock.engine.planning._selection import Block, Selection
from penstock.engine.planning._spans import PlannedBlock, RowIdentity, Span

__all__ = [
    "Block",
    "FixedColumn",
    "Layout",
    "MixedPlannedSpans",
    "MixedPlanner",
    "MixedSpan",
    "PlanOptions",
    "PlannedBlock",
    "PlannedSpans",
    "Planner",
    "RowIdentity",
    "Selection",
    "Span",
    "compaction_advice",
]
