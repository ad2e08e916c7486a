"""Pure arithmetic of an epoch: the order of rows and their partition over ranks; integers in, integers out."""

from penstock.plan._blocks import split_blocks
from penstock.plan._epoch import Epoch
from penstock.plan._grouping import distinct, flat_ranges, groups, take_positions
from penstock.plan._options import SEQUENTIAL, Shuffle, ShuffleLayout, resolve_shuffle
from penstock.plan._partition import RankPartitioner
from penstock.plan._quality import ShuffleQuality, expected_blocks
from penstock.plan._random import derive_key, random_u64
from penstock.plan._schedule import Schedule
from penstock.plan._spread import BoundedSpread, LaneRows
from penstock.plan._state import LoaderState, OrderSpec
from penstock.plan._steps import Places, SourceRows, SpanSteps
from penstock.plan._stretches import STRETCH_PARTS, page_reads, stretch_parts
from penstock.plan.mixture import (
    MixtureOrder,
    MixturePartitioner,
    MixturePoint,
    MixtureSpec,
    MixtureState,
    Segment,
    State,
    mixture_rows,
    segments_of,
    whole_weights,
)
from penstock.plan.samples import (
    CU_SEQLENS,
    POSITION_IDS,
    SEGMENT_IDS,
    ComposedRows,
    Composition,
    DrawnGroups,
    Draws,
    GroupedRows,
    GroupNames,
    PackedSamples,
    Packing,
    Rows,
    Splits,
    WeightedDraw,
    Windows,
    WindowSamples,
    digest_of,
    find_windows,
    group_rows,
    pack_concat,
    pack_fit,
)

__all__ = [
    "CU_SEQLENS",
    "POSITION_IDS",
    "SEGMENT_IDS",
    "SEQUENTIAL",
    "STRETCH_PARTS",
    "BoundedSpread",
    "ComposedRows",
    "Composition",
    "DrawnGroups",
    "Draws",
    "Epoch",
    "GroupNames",
    "GroupedRows",
    "LaneRows",
    "LoaderState",
    "MixtureOrder",
    "MixturePartitioner",
    "MixturePoint",
    "MixtureSpec",
    "MixtureState",
    "OrderSpec",
    "PackedSamples",
    "Packing",
    "Places",
    "RankPartitioner",
    "Rows",
    "Schedule",
    "Segment",
    "Shuffle",
    "ShuffleLayout",
    "ShuffleQuality",
    "SourceRows",
    "SpanSteps",
    "Splits",
    "State",
    "WeightedDraw",
    "WindowSamples",
    "Windows",
    "derive_key",
    "digest_of",
    "distinct",
    "expected_blocks",
    "find_windows",
    "flat_ranges",
    "group_rows",
    "groups",
    "mixture_rows",
    "pack_concat",
    "pack_fit",
    "page_reads",
    "random_u64",
    "resolve_shuffle",
    "segments_of",
    "split_blocks",
    "stretch_parts",
    "take_positions",
    "whole_weights",
]
