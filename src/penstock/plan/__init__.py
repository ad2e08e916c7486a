"""Pure arithmetic of an epoch: the order of rows and their partition over ranks; integers in, integers out."""

from penstock.plan._blocks import split_blocks
from penstock.plan._epoch import Epoch
from penstock.plan._options import SEQUENTIAL, Shuffle, ShuffleLayout, resolve_shuffle
from penstock.plan._packing import Packing, pack_concat, pack_fit
from penstock.plan._partition import RankPartitioner
from penstock.plan._quality import ShuffleQuality, expected_blocks
from penstock.plan._random import derive_key, random_u64
from penstock.plan._schedule import LaneShare, Places, Schedule, SpanSteps
from penstock.plan._spread import BoundedSpread
from penstock.plan._state import LoaderState, OrderSpec
from penstock.plan._windows import DrawnGroups, GroupedRows, Windows, find_windows, group_rows

__all__ = [
    "SEQUENTIAL",
    "BoundedSpread",
    "DrawnGroups",
    "Epoch",
    "GroupedRows",
    "LaneShare",
    "LoaderState",
    "OrderSpec",
    "Packing",
    "Places",
    "RankPartitioner",
    "Schedule",
    "Shuffle",
    "ShuffleLayout",
    "ShuffleQuality",
    "SpanSteps",
    "Windows",
    "derive_key",
    "expected_blocks",
    "find_windows",
    "group_rows",
    "pack_concat",
    "pack_fit",
    "random_u64",
    "resolve_shuffle",
    "split_blocks",
]
