"""Samples and selections of an epoch: windows, packed sequences, weighted draws and splits."""

from penstock.plan.samples._compositions import (
    CU_SEQLENS,
    POSITION_IDS,
    SEGMENT_IDS,
    ComposedRows,
    Composition,
    Draws,
    GroupNames,
    PackedSamples,
    Rows,
    WindowSamples,
    digest_of,
)
from penstock.plan.samples._packing import Packing, pack_concat, pack_fit
from penstock.plan.samples._splits import Splits
from penstock.plan.samples._weights import WeightedDraw
from penstock.plan.samples._windows import DrawnGroups, GroupedRows, Windows, find_windows, group_rows

__all__ = [
    "CU_SEQLENS",
    "POSITION_IDS",
    "SEGMENT_IDS",
    "ComposedRows",
    "Composition",
    "DrawnGroups",
    "Draws",
    "GroupNames",
    "GroupedRows",
    "PackedSamples",
    "Packing",
    "Rows",
    "Splits",
    "WeightedDraw",
    "WindowSamples",
    "Windows",
    "digest_of",
    "find_windows",
    "group_rows",
    "pack_concat",
    "pack_fit",
]
