"""Which rows are read when: selections, blocks, and spans of steps."""

from penstock.engine.planning._columns import FixedColumn, Layout, sample_fields
from penstock.engine.planning._composed import make_selection
from penstock.engine.planning._planner import PlannedSpans, Planner, PlanOptions, TablePlanner
from penstock.engine.planning._row_sizes import compaction_advice
from penstock.engine.planning._samples import (
    CU_SEQLENS,
    POSITION_IDS,
    SEGMENT_IDS,
    ComposedRows,
    Composition,
    GroupNames,
    PackedSamples,
    Rows,
    WindowSamples,
    flat_ranges,
)
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Block, PlannedBlock, RowIdentity, Span, SpanSamples, TableRows
from penstock.engine.planning._split_blocks import page_reads

__all__ = [
    "CU_SEQLENS",
    "POSITION_IDS",
    "SEGMENT_IDS",
    "Block",
    "ComposedRows",
    "Composition",
    "FixedColumn",
    "GroupNames",
    "Layout",
    "PackedSamples",
    "PlanOptions",
    "PlannedBlock",
    "PlannedSpans",
    "Planner",
    "RowIdentity",
    "Rows",
    "Selection",
    "Span",
    "SpanSamples",
    "TablePlanner",
    "TableRows",
    "WindowSamples",
    "compaction_advice",
    "flat_ranges",
    "make_selection",
    "page_reads",
    "sample_fields",
]
