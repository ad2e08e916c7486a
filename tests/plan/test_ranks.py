"""Whatever the ranks and the batch size, every step deals out the next positions, each to one rank."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import Dealer
from penstock.types import World

WORLDS = (1, 2, 3, 6, 7, 24, 65)
LANES = (1, 2, 3, 4, 8, 24, 96, 384)
worlds = st.one_of(st.sampled_from(WORLDS), st.integers(1, 70))
lanes = st.one_of(st.sampled_from(LANES), st.integers(1, 100))
batch_sizes = st.integers(1, 40)
steady = settings(deadline=None)


def dealers(rows: int, lanes: int, ranks: int, batch_size: int, *, drop_last: bool = False) -> list[Dealer]:
    return [Dealer(rows, lanes, World(rank, ranks), batch_size, drop_last) for rank in range(ranks)]


@given(lanes, worlds, batch_sizes, st.integers(0, 10_000), st.integers(1, 4))
@steady
def test_every_full_step_is_the_next_run_of_positions(
    lanes: int, ranks: int, batch_size: int, start: int, steps: int
) -> None:
    all_ranks = dealers(1 << 40, lanes, ranks, batch_size)
    dealt = np.stack([dealer.positions(start, steps) for dealer in all_ranks])
    assert dealt.shape == (ranks, steps, batch_size)
    for step in range(steps):
        first = start + step * ranks * batch_size
        assert np.array_equal(np.sort(dealt[:, step].reshape(-1)), np.arange(first, first + ranks * batch_size))


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_each_position_of_an_epoch_is_real_on_one_rank_in_one_step(ranks: int, batch_size: int) -> None:
    for rows in (0, 1, ranks - 1, ranks * batch_size, 3 * ranks * batch_size + 1, 997):
        check_an_epoch(rows, 24, ranks, batch_size, start=0)


@given(st.integers(0, 2000), lanes, worlds, batch_sizes, st.data())
@steady
def test_each_position_from_any_point_on_is_real_on_one_rank_in_one_step(
    rows: int, lanes: int, ranks: int, batch_size: int, data: st.DataObject
) -> None:
    check_an_epoch(rows, lanes, ranks, batch_size, start=data.draw(st.integers(0, rows)))


def check_an_epoch(rows: int, lanes: int, ranks: int, batch_size: int, *, start: int) -> None:
    all_ranks = dealers(rows, lanes, ranks, batch_size)
    [steps] = {dealer.steps(start) for dealer in all_ranks}
    [full] = {dealer.full_steps(start) for dealer in all_ranks}
    assert steps == -(-(rows - start) // (ranks * batch_size))
    assert full == (rows - start) // (ranks * batch_size)
    [dropping] = {dealer.steps(start) for dealer in dealers(rows, lanes, ranks, batch_size, drop_last=True)}
    assert dropping == full
    if steps == full:
        return
    begun = start + full * ranks * batch_size
    left = np.arange(begun, rows)
    real = []
    for dealer in all_ranks:
        positions, padding = dealer.last(begun)
        assert len(positions) == len(padding) == (len(left) if ranks == 1 else batch_size)
        assert np.isin(positions, left).all()
        real.append(positions[~padding])
    assert np.array_equal(np.sort(np.concatenate(real)), left)


@given(st.integers(1, 2000), lanes, worlds, batch_sizes)
@steady
def test_a_rank_is_filled_up_with_its_own_rows_where_it_has_any(
    rows: int, lanes: int, ranks: int, batch_size: int
) -> None:
    for dealer in dealers(rows, lanes, ranks, batch_size):
        begun = dealer.full_steps(0) * dealer.step_rows
        if begun < rows:
            positions, padding = dealer.last(begun)
            if not padding.all():
                assert np.isin(positions[padding], positions[~padding]).all()


@given(st.integers(1, 12), st.integers(1, 8), batch_sizes, st.integers(0, 1000))
@steady
def test_ranks_that_divide_the_lanes_own_them(share: int, ranks: int, batch_size: int, start: int) -> None:
    lanes = share * ranks
    for dealer in dealers(1 << 40, lanes, ranks, batch_size):
        assert dealer.owns_lanes
        assert (dealer.rank_lanes, dealer.read_factor) == (share, 1.0)
        # Whatever the point they start from, or a run that resumed would read others' blocks once more.
        assert set((dealer.positions(start, 3) % lanes % ranks).reshape(-1).tolist()) == {dealer.world.rank}


def lanes_of_ranks(lanes: int, ranks: int, batch_size: int) -> Iterator[set[int]]:
    """The lanes that each rank comes to, as found by dealing out until the steps begin in the same lane again."""
    for dealer in dealers(1 << 40, lanes, ranks, batch_size):
        yield set(np.unique(dealer.positions(0, lanes) % lanes).tolist())


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 20))
@steady
def test_the_lanes_that_a_rank_reads_and_the_factor_are_what_is_dealt(lanes: int, ranks: int, batch_size: int) -> None:
    found = list(lanes_of_ranks(lanes, ranks, batch_size))
    for dealer in dealers(1 << 40, lanes, ranks, batch_size):
        if not dealer.owns_lanes:
            assert dealer.rank_lanes == max(map(len, found))
            assert dealer.read_factor == pytest.approx(sum(map(len, found)) / lanes)


@pytest.mark.parametrize("ranks", [5, 7, 65])
def test_ranks_that_do_not_divide_the_lanes_share_few_of_them(ranks: int) -> None:
    """Where a step has many rows of each lane, a rank meets only its neighbours."""
    dealer = Dealer(1 << 40, 24, World(0, ranks), 256, False)
    assert dealer.rank_lanes <= -(-24 // ranks) + 2
    assert dealer.read_factor < (2 if ranks < 24 else 2 + ranks / 24)
