"""The bounded spread is a permutation in which no row moves far, and any part of it can be computed alone."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plan import Spread, derive

reaches = st.one_of(st.integers(0, 70), st.integers(0, 7000), st.sampled_from([2047, 2048, 2049, 4096]))
lengths = st.one_of(st.integers(0, 50), st.integers(0, 14_000), st.sampled_from([2047, 2048, 2049, 4096, 4097]))
spreads = st.builds(Spread, lengths, reaches, st.integers(0, 100).map(derive))
steady = settings(deadline=None)


def whole(spread: Spread) -> npt.NDArray[np.int64]:
    """All rows in the order in which they are read."""
    parts = [spread.chunk(number) for number in range(spread.chunks)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


@given(spreads)
@steady
@example(Spread(0, 5, 1))
@example(Spread(1, 0, 1))
@example(Spread(5000, 1, 1))
@example(Spread(100, 100_000, 1))
def test_the_chunks_are_a_permutation_and_no_row_moves_farther_than_the_reach(spread: Spread) -> None:
    order = whole(spread)
    assert np.array_equal(np.sort(order), np.arange(spread.length))
    moved = np.abs(order - np.arange(spread.length))
    assert moved.max(initial=0) < max(spread.reach, 1)


@given(spreads)
@steady
def test_any_chunk_can_be_reached_at_once(spread: Spread) -> None:
    """What is before a chunk, and what earlier chunks leave over, as found by reading everything before it."""
    chunks = [spread.chunk(number) for number in range(spread.chunks)]
    read: set[int] = set()
    for number in range(spread.chunks + 1):
        start = number * spread.width
        assert spread.before(number) == len(read)
        assert spread.left(number).tolist() == sorted(set(range(min(start, spread.length))) - read)
        if number < spread.chunks:
            if len(chunks[number]):
                assert chunks[number].min() > start - max(spread.reach, 1)
                assert chunks[number].max() < start + spread.width
            read |= set(chunks[number].tolist())


@given(spreads, st.data())
@steady
def test_a_row_is_found_in_its_chunk(spread: Spread, data: st.DataObject) -> None:
    ends = np.cumsum([len(spread.chunk(number)) for number in range(spread.chunks)])
    if spread.length:
        for index in {0, spread.length - 1, data.draw(st.integers(0, spread.length - 1))}:
            assert spread.find(index) == int(np.searchsorted(ends, index, side="right"))


@given(lengths, st.integers(0, 5))
@steady
def test_no_reach_keeps_the_order(length: int, key: int) -> None:
    assert np.array_equal(whole(Spread(length, 0, key)), np.arange(length))


def test_another_key_is_another_order() -> None:
    orders = {tuple(whole(Spread(100, 30, derive(key))).tolist()) for key in range(50)}
    assert len(orders) == 50


@pytest.mark.parametrize("reach", [10_000, 1 << 20, 1 << 24, 4_194_304_000])
def test_a_reach_beyond_the_lane_is_nearly_a_true_shuffle(reach: int) -> None:
    """Also one of a thousand blocks of the smallest rows there are, whose keys need many bits."""
    order = whole(Spread(1000, reach, derive(1)))
    assert np.array_equal(np.sort(order), np.arange(1000))
    moved = np.abs(order - np.arange(1000)).mean()
    assert moved > 290  # a true shuffle: 333
    assert (np.diff(order) == 1).mean() < 0.01


def test_rows_move_all_the_way_and_evenly() -> None:
    """The share of rows that are still to come, some rows behind: what makes the window as large as it is."""
    spread = Spread(100_000, 1000, derive(3))
    order = whole(spread)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(order))
    delay = (turn - np.arange(len(order)))[2000:-2000] + 500  # a row in the middle comes half a reach late
    assert abs(delay.mean() - 500) < 10
    assert delay.min() < 50
    assert delay.max() > 950
    assert abs((delay < 250).mean() - 0.25) < 0.02


def test_the_order_never_changes() -> None:
    """Another order here is another order for everybody."""
    assert Spread(16, 5, derive(7)).chunk(0).tolist() == [0, 1, 2, 3, 5, 6, 4, 10, 7, 8, 13, 9, 12, 14, 11, 15]
    spread = Spread(5000, 100, derive(7))
    assert (spread.chunks, spread.before(1)) == (3, 1994)
    assert spread.chunk(1)[:8].tolist() == [2001, 1970, 2004, 2013, 2030, 2019, 1974, 2017]
