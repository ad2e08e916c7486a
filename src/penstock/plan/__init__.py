"""Pure arithmetic of an epoch: the order of rows and their partition over ranks; integers in, integers out."""

from penstock.plan._blocks import split_blocks
from penstock.plan._epoch import Epoch
from penstock.plan._mixture import MixtureOrder, Segment, lay_out, mixture_rows, whole_weights
from penstock.plan._mixture_ranks import MixturePartitioner, MixtureShare, SourceRows
from penstock.plan._mixture_state import MixturePoint, MixtureSpec, MixtureState
from penstock.plan._options import SEQUENTIAL, Shuffle, ShuffleLayout, resolve_shuffle
from penstock.plan._partition import RankPartitioner
from penstock.plan._quality import ShuffleQuality, expected_blocks
from penstock.plan._random import derive_key, random_u64
from penstock.plan._schedule import LaneShare, Places, Schedule, SpanSteps
from penstock.plan._spread import BoundedSpread
from penstock.plan._state import LoaderState, OrderSpec

__all__ = [
    "SEQUENTIAL",
    "BoundedSpread",
    "Epoch",
    "LaneShare",
    "LoaderState",
    "MixtureOrder",
    "MixturePartitioner",
    "MixturePoint",
    "MixtureShare",
    "MixtureSpec",
    "MixtureState",
    "OrderSpec",
    "Places",
    "RankPartitioner",
    "Schedule",
    "Segment",
    "Shuffle",
    "ShuffleLayout",
    "ShuffleQuality",
    "SourceRows",
    "SpanSteps",
    "derive_key",
    "expected_blocks",
    "lay_out",
    "mixture_rows",
    "random_u64",
    "resolve_shuffle",
    "split_blocks",
    "whole_weights",
]
