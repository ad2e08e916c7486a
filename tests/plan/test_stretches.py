"""The rows of a block in parts, by when they are read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import STRETCH_PARTS, page_reads, stretch_parts


@given(st.integers(1, 300), st.integers(1, 1000), st.floats(1, 6), st.booleans())
def test_parts_follow_each_other_in_time(rows: int, number: int, reads: float, whole_lanes: bool) -> None:
    times = np.random.default_rng(number).random(rows) * 1000
    parts = stretch_parts(times, number, page_reads=reads, whole_lanes=whole_lanes)
    assert (np.diff(parts[np.argsort(times)]) >= 0).all()
    assert parts.min() == 0
    assert parts.max() < STRETCH_PARTS * (int(reads) + 1)


@pytest.mark.parametrize("reads", [1.0, 1.4, 2.5, 4.0])
def test_blocks_have_as_many_stretches_as_pages_are_read(reads: float) -> None:
    times = np.arange(3000.0)
    counts = [
        len(np.unique(stretch_parts(times, number, page_reads=reads, whole_lanes=False) // STRETCH_PARTS))
        for number in range(1, 201)
    ]
    assert np.mean(counts) == pytest.approx(reads, abs=0.02)


@pytest.mark.parametrize("whole_lanes", [False, True])
def test_a_smaller_share_of_the_window_reads_pages_more_often(whole_lanes: bool) -> None:
    reads = [page_reads(share, whole_lanes=whole_lanes) for share in np.linspace(0.01, 1, 50)]
    assert (np.diff(reads) <= 0).all()
    assert reads[-1] == 1
    assert page_reads(0, whole_lanes=whole_lanes) == np.inf
