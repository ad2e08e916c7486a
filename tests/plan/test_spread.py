"""The bounded spread is a permutation with bounded displacement, and any chunk is computed directly."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.plan import BoundedSpread, LaneRows, derive_key

spread_sizes = st.one_of(st.integers(0, 70), st.integers(0, 7000), st.sampled_from([2047, 2048, 2049, 4096]))
lengths = st.one_of(st.integers(0, 50), st.integers(0, 14_000), st.sampled_from([2047, 2048, 2049, 4096, 4097]))
spreads = st.builds(
    BoundedSpread, lengths, spread_sizes, st.integers(0, 100).map(derive_key),
    st.sampled_from([1, 1, 8, 60]), st.sampled_from([0, 16, 500]),
)  # fmt: skip
steady = settings(deadline=None)


def whole(spread: BoundedSpread) -> npt.NDArray[np.int64]:
    """All rows in read order."""
    parts = [spread.chunk(index) for index in range(spread.num_chunks)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


@given(spreads)
@steady
@example(BoundedSpread(0, 5, 1))
@example(BoundedSpread(1, 0, 1))
@example(BoundedSpread(5000, 1, 1))
@example(BoundedSpread(100, 100_000, 1))
def test_the_chunks_are_a_permutation_with_bounded_displacement(spread: BoundedSpread) -> None:
    order = whole(spread)
    assert np.array_equal(np.sort(order), np.arange(spread.length))
    moved = np.abs(order - np.arange(spread.length))
    assert moved.max(initial=0) < max(spread.spread_rows, 1)


@given(spreads)
@steady
def test_any_chunk_is_computed_directly(spread: BoundedSpread) -> None:
    """Rows read before a chunk, and rows pending from earlier chunks, match reading every earlier chunk."""
    chunks = [spread.chunk(index) for index in range(spread.num_chunks)]
    read: set[int] = set()
    for index in range(spread.num_chunks + 1):
        start = index * spread.chunk_width
        assert spread.rows_before(index) == len(read)
        assert spread.pending_rows(index).tolist() == sorted(set(range(min(start, spread.length))) - read)
        if index < spread.num_chunks:
            if len(chunks[index]):
                assert chunks[index].min() > start - max(spread.spread_rows, 1)
                assert chunks[index].max() < start + spread.chunk_width
            read |= set(chunks[index].tolist())


@given(spreads, st.data())
@steady
def test_chunk_of_finds_the_chunk_of_an_offset(spread: BoundedSpread, data: st.DataObject) -> None:
    ends = np.cumsum([len(spread.chunk(index)) for index in range(spread.num_chunks)])
    if spread.length:
        for offset in {0, spread.length - 1, data.draw(st.integers(0, spread.length - 1))}:
            assert spread.chunk_of(offset) == int(np.searchsorted(ends, offset, side="right"))


@given(spreads, st.data())
@steady
def test_a_lane_is_read_from_any_offset(spread: BoundedSpread, data: st.DataObject) -> None:
    assume(spread.length)
    order = whole(spread)
    offset = data.draw(st.integers(0, spread.length - 1))
    rows = LaneRows(spread, offset)
    first, end, read = rows.near()
    before, after = order[:offset], order[offset:]
    assert (after >= first).all()
    assert np.array_equal(np.sort(read), np.sort(before[(before >= first) & (before < end)]))
    while offset < spread.length:
        upto = data.draw(st.integers(offset, spread.length) | st.integers(offset, min(offset + 50, spread.length)))
        assert np.array_equal(rows.until(upto), order[offset:upto])
        if upto == offset:
            break
        offset = rows.next_offset


@given(spreads)
@steady
@example(BoundedSpread(0, 5, 1))
def test_times_increase_in_read_order(spread: BoundedSpread) -> None:
    """Up to the resolution of keys."""
    times = spread.read_times(0, spread.length)[whole(spread)]
    assert (np.diff(times) > -1e-4).all()


@given(lengths, st.integers(0, 5))
@steady
def test_zero_spread_preserves_the_order(length: int, key: int) -> None:
    assert np.array_equal(whole(BoundedSpread(length, 0, key)), np.arange(length))


def test_keys_give_different_orders() -> None:
    orders = {tuple(whole(BoundedSpread(100, 30, derive_key(key))).tolist()) for key in range(50)}
    assert len(orders) == 50


@pytest.mark.parametrize("spread_rows", [10_000, 1 << 20, 1 << 24, 4_194_304_000])
def test_a_spread_beyond_the_lane_is_nearly_uniform(spread_rows: int) -> None:
    """Includes a spread of 1000 blocks of the smallest possible rows, whose keys need many bits."""
    order = whole(BoundedSpread(1000, spread_rows, derive_key(1)))
    assert np.array_equal(np.sort(order), np.arange(1000))
    moved = np.abs(order - np.arange(1000)).mean()
    assert moved > 290  # a uniform shuffle: 333
    assert (np.diff(order) == 1).mean() < 0.01


@pytest.mark.parametrize(("length", "spread_rows"), [(2_500_000, 2_883_584), (2_500_000, 400_000), (400_000, 10**9)])
def test_keys_of_many_rows_differ(length: int, spread_rows: int) -> None:
    """Rows with the same key would stay in ascending order."""
    order = whole(BoundedSpread(length, spread_rows, derive_key(1)))
    assert np.array_equal(np.sort(order), np.arange(length))
    assert abs((np.diff(order) > 0).mean() - 0.5) < 0.01
    assert (np.diff(order) == 1).mean() < 1e-4


def test_displacements_are_uniform() -> None:
    """Displacements cover the whole bound evenly; they determine the size of the window."""
    spread = BoundedSpread(100_000, 1000, derive_key(3))
    order = whole(spread)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(order))
    delay = (turn - np.arange(len(order)))[2000:-2000] + 500  # the mean displacement is half the spread
    assert abs(delay.mean() - 500) < 10
    assert delay.min() < 50
    assert delay.max() > 950
    assert abs((delay < 250).mean() - 0.25) < 0.02


def test_golden_order() -> None:
    """A change here changes every user's order and invalidates checkpoints."""
    assert BoundedSpread(16, 5, derive_key(7)).chunk(0).tolist() == [
        0,
        1,
        2,
        3,
        5,
        6,
        4,
        10,
        7,
        8,
        13,
        9,
        12,
        14,
        11,
        15,
    ]
    spread = BoundedSpread(5000, 100, derive_key(7))
    assert (spread.num_chunks, spread.rows_before(1)) == (3, 1994)
    assert spread.chunk(1)[:8].tolist() == [2001, 1970, 2004, 2013, 2030, 2019, 1974, 2017]


def test_runs_stay_together() -> None:
    """Rows of a run are read within the jitter of each other, and runs are spread as far as single rows."""
    order = whole(BoundedSpread(20_000, 8_000, 1, run_rows=8, jitter_rows=100))
    places = np.argsort(order).reshape(-1, 8)
    assert (places.max(axis=1) - places.min(axis=1)).max() < 200
    assert np.median(places.max(axis=1) - places.min(axis=1)) > 40, "and not side by side"
    assert np.abs(np.diff(places[:, 0])).mean() > 1_500
