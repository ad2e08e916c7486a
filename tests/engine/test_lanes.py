"""Lanes of an epoch: cursors that share one order of sections, however many there are."""

import tracemalloc
from itertools import islice

import numpy as np

from penstock.engine.planning._lanes import _Ordered

SECTIONS, LANES = 300_000, 64


def test_every_item_between_two_places_comes_with_its_start() -> None:
    order = _Ordered("abcd", np.array([3, 3, 5, 9]))  # the second is empty
    assert list(order.between(0, 9)) == [("a", 0), ("c", 3), ("d", 5)]
    assert list(order.between(2, 5)) == [("a", 0), ("c", 3)]
    assert list(order.between(5, 6)) == [("d", 5)]
    assert list(order.between(9, 12)) == []


def test_a_lane_costs_no_memory_for_the_sections_of_others() -> None:
    """A table of ten petabytes has 300,000 leaves, and 384 lanes: together they once took gigabytes."""
    order = _Ordered(range(SECTIONS), np.arange(1, SECTIONS + 1))
    tracemalloc.start()
    try:
        lanes = [order.between(lane * SECTIONS // LANES, SECTIONS) for lane in range(LANES)]
        firsts = [next(islice(lane, 1)) for lane in lanes]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert firsts == [(lane * SECTIONS // LANES,) * 2 for lane in range(LANES)]
    assert peak < 1 << 20
