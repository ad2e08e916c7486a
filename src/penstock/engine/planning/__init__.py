"""Which rows are read when: selections, blocks, and spans of steps."""

from penstock.engine.planning._columns import Layout, sample_fields
from penstock.engine.planning._composed import make_selection
from penstock.engine.planning._locators import PlanOptions
from penstock.engine.planning._planner import PlannedSpans, Planner, TablePlanner
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Block, PlannedBlock, RowIdentity, Span, SpanSamples, TableRows

__all__ = [
    "Block",
    "Layout",
    "PlanOptions",
    "PlannedBlock",
    "PlannedSpans",
    "Planner",
    "RowIdentity",
    "Selection",
    "Span",
    "SpanSamples",
    "TablePlanner",
    "TableRows",
    "make_selection",
    "sample_fields",
]
