"""For any number of ranks and batch size, every step partitions the next range of positions over the ranks."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import RankPartitioner
from penstock.types import World

WORLDS = (1, 2, 3, 6, 7, 24, 65)
LANES = (1, 2, 3, 4, 8, 24, 96, 384)
worlds = st.one_of(st.sampled_from(WORLDS), st.integers(1, 70))
lanes = st.one_of(st.sampled_from(LANES), st.integers(1, 100))
batch_sizes = st.integers(1, 40)
steady = settings(deadline=None)


def partitioners(
    rows: int, lanes: int, ranks: int, batch_size: int, *, drop_last: bool = False
) -> list[RankPartitioner]:
    return [RankPartitioner(rows, lanes, World(rank, ranks), batch_size, drop_last) for rank in range(ranks)]


@given(lanes, worlds, batch_sizes, st.integers(0, 10_000), st.integers(1, 4))
@steady
def test_every_full_step_is_the_next_range_of_positions(
    lanes: int, ranks: int, batch_size: int, start: int, steps: int
) -> None:
    all_ranks = partitioners(1 << 40, lanes, ranks, batch_size)
    positions = np.stack([partitioner.positions(start, steps) for partitioner in all_ranks])
    assert positions.shape == (ranks, steps, batch_size)
    for step in range(steps):
        first = start + step * ranks * batch_size
        assert np.array_equal(np.sort(positions[:, step].reshape(-1)), np.arange(first, first + ranks * batch_size))


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_ranks_partition_an_epoch(ranks: int, batch_size: int) -> None:
    for rows in (0, 1, ranks - 1, ranks * batch_size, 3 * ranks * batch_size + 1, 997):
        check_an_epoch(rows, 24, ranks, batch_size, start=0)


@given(st.integers(0, 2000), lanes, worlds, batch_sizes, st.data())
@steady
def test_ranks_partition_the_rest_of_an_epoch_from_any_position(
    rows: int, lanes: int, ranks: int, batch_size: int, data: st.DataObject
) -> None:
    check_an_epoch(rows, lanes, ranks, batch_size, start=data.draw(st.integers(0, rows)))


def check_an_epoch(rows: int, lanes: int, ranks: int, batch_size: int, *, start: int) -> None:
    all_ranks = partitioners(rows, lanes, ranks, batch_size)
    [steps] = {partitioner.steps(start) for partitioner in all_ranks}
    [full] = {partitioner.full_steps(start) for partitioner in all_ranks}
    assert steps == -(-(rows - start) // (ranks * batch_size))
    assert full == (rows - start) // (ranks * batch_size)
    [dropping] = {
        partitioner.steps(start) for partitioner in partitioners(rows, lanes, ranks, batch_size, drop_last=True)
    }
    assert dropping == full
    if steps == full:
        return
    last_start = start + full * ranks * batch_size
    remaining = np.arange(last_start, rows)
    real = []
    for partitioner in all_ranks:
        positions, padding = partitioner.last_step(last_start)
        assert len(positions) == len(padding) == (len(remaining) if ranks == 1 else batch_size)
        assert np.isin(positions, remaining).all()
        real.append(positions[~padding])
    assert np.array_equal(np.sort(np.concatenate(real)), remaining)


@given(st.integers(1, 2000), lanes, worlds, batch_sizes)
@steady
def test_a_rank_pads_with_its_own_rows_if_it_has_any(rows: int, lanes: int, ranks: int, batch_size: int) -> None:
    for partitioner in partitioners(rows, lanes, ranks, batch_size):
        last_start = partitioner.full_steps(0) * partitioner.step_rows
        if last_start < rows:
            positions, padding = partitioner.last_step(last_start)
            if not padding.all():
                assert np.isin(positions[padding], positions[~padding]).all()


@given(st.integers(1, 12), st.integers(1, 8), batch_sizes, st.integers(0, 1000))
@steady
def test_ranks_own_lanes_if_they_divide_them(share: int, ranks: int, batch_size: int, start: int) -> None:
    lanes = share * ranks
    for partitioner in partitioners(1 << 40, lanes, ranks, batch_size):
        assert partitioner.owns_lanes
        assert (partitioner.lanes_per_rank, partitioner.read_amplification) == (share, 1.0)
        # Independent of the start position, or a resumed run would read blocks of other ranks again.
        assert set((partitioner.positions(start, 3) % lanes % ranks).reshape(-1).tolist()) == {partitioner.world.rank}


def lanes_of_ranks(lanes: int, ranks: int, batch_size: int) -> Iterator[set[int]]:
    """The lanes that each rank reads, by enumerating steps until they start at the same lane again."""
    for partitioner in partitioners(1 << 40, lanes, ranks, batch_size):
        yield set(np.unique(partitioner.positions(0, lanes) % lanes).tolist())


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 20))
@steady
def test_lanes_per_rank_and_read_amplification_match_the_positions(lanes: int, ranks: int, batch_size: int) -> None:
    found = list(lanes_of_ranks(lanes, ranks, batch_size))
    for partitioner in partitioners(1 << 40, lanes, ranks, batch_size):
        if not partitioner.owns_lanes:
            assert partitioner.lanes_per_rank == max(map(len, found))
            assert partitioner.read_amplification == pytest.approx(sum(map(len, found)) / lanes)


@pytest.mark.parametrize("ranks", [5, 7, 65])
def test_ranks_that_do_not_divide_the_lanes_share_few(ranks: int) -> None:
    """If a step has many rows of each lane, a rank shares lanes only with its neighbours."""
    partitioner = RankPartitioner(1 << 40, 24, World(0, ranks), 256, False)
    assert partitioner.lanes_per_rank <= -(-24 // ranks) + 2
    assert partitioner.read_amplification < (2 if ranks < 24 else 2 + ranks / 24)
