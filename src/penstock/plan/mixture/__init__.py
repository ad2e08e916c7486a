"""The order of a mixture: from which source each row comes, which rank reads it, and where a state continues."""

from penstock.plan.mixture._order import MixtureOrder, Segment, mixture_rows, segments_of, whole_weights
from penstock.plan.mixture._ranks import MixturePartitioner
from penstock.plan.mixture._state import MixturePoint, MixtureSpec, MixtureState, State

__all__ = [
    "MixtureOrder",
    "MixturePartitioner",
    "MixturePoint",
    "MixtureSpec",
    "MixtureState",
    "Segment",
    "State",
    "mixture_rows",
    "segments_of",
    "whole_weights",
]
