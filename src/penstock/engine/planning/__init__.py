"""Which rows are read when: selections, blocks, and spans of steps."""

from penstock.engine.planning._columns import Layout, sample_fields
from penstock.engine.planning._composed import make_selection
from penstock.engine.planning._planner import PlannedSpans, Planner, PlanOptions, ReaderShare, TablePlanner
from penstock.engine.planning._samples import (
    CU_SEQLENS,
    POSITION_IDS,
    ComposedRows,
    GroupNames,
    PackedSamples,
    Rows,
    WindowSamples,
    groups,
)
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Block, PlannedBlock, RowIdentity, Span, SpanSamples, TableRows
from penstock.engine.planning._split_blocks import page_reads

__all__ = [
    "CU_SEQLENS",
    "POSITION_IDS",
    "Block",
    "ComposedRows",
    "GroupNames",
    "Layout",
    "PackedSamples",
    "PlanOptions",
    "PlannedBlock",
    "PlannedSpans",
    "Planner",
    "ReaderShare",
    "RowIdentity",
    "Rows",
    "Selection",
    "Span",
    "SpanSamples",
    "TablePlanner",
    "TableRows",
    "WindowSamples",
    "groups",
    "make_selection",
    "page_reads",
    "sample_fields",
]
