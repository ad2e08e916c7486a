"""An epoch's order is a permutation determined by seed and epoch, and close to a uniform shuffle."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import Epoch, Shuffle, ShuffleLayout, ShuffleQuality, expected_blocks, resolve_shuffle

Int64Array = npt.NDArray[np.int64]

sections = st.lists(st.integers(0, 300), max_size=8).map(lambda rows: np.array(rows, np.int64))
epochs = st.builds(
    Epoch, sections, st.integers(1, 50), st.integers(0, 60), st.integers(0, 9), st.integers(0, 9), st.booleans()
)
steady = settings(deadline=None)


def order_of(epoch: Epoch, block_rows: int) -> Int64Array:
    """The rows of all sections in position order, by brute force, with blocks of `block_rows` rows."""
    firsts = np.cumsum(epoch.section_rows) - epoch.section_rows
    slots: list[Int64Array] = []
    for section in epoch.sections.tolist():
        rows = np.arange(epoch.section_rows[section]) + firsts[section]
        blocks = np.split(rows, np.arange(block_rows, len(rows), block_rows)) if len(rows) else []
        slots += [blocks[index] for index in epoch.block_order(section, 0, len(blocks)).tolist()]
    sequence = np.concatenate([np.zeros(0, np.int64), *slots])
    order = np.full(epoch.rows, -1)
    for lane in range(epoch.lanes):
        spread = epoch.lane_order(lane)
        parts = [spread.chunk(index) for index in range(spread.num_chunks)]
        order[lane :: epoch.lanes] = sequence[epoch.lane_start(lane) + np.concatenate([np.zeros(0, np.int64), *parts])]
    return order


@given(epochs)
@steady
def test_lanes_partition_the_slots_and_take_turns(epoch: Epoch) -> None:
    starts = [epoch.lane_start(lane) for lane in range(epoch.lanes + 1)]
    assert (starts[0], starts[-1]) == (0, epoch.rows)
    lengths = np.diff(starts)
    assert lengths.tolist() == [epoch.lane_order(lane).length for lane in range(epoch.lanes)]
    # Position p is turn p // lanes of lane p % lanes, which gives the length of each lane.
    assert lengths.tolist() == [len(range(lane, epoch.rows, epoch.lanes)) for lane in range(epoch.lanes)]


@given(epochs)
@steady
def test_shuffling_permutes_sections_parts_and_blocks(epoch: Epoch) -> None:
    count = len(epoch.section_rows)
    assert sorted(epoch.sections.tolist()) == list(range(count))
    assert epoch.section_ends.tolist() == np.cumsum(epoch.section_rows[epoch.sections]).tolist()
    assert sorted(epoch.part_order(3, 17).tolist()) == list(range(17))
    assert sorted(epoch.block_order(3, 1, 17).tolist()) == list(range(17))
    if not epoch.shuffled:
        assert epoch.sections.tolist() == list(range(count))
        assert epoch.part_order(3, 17).tolist() == list(range(17))
        assert epoch.block_order(3, 1, 17).tolist() == list(range(17))


@given(epochs, st.integers(1, 100))
@steady
def test_the_order_is_a_permutation(epoch: Epoch, block_rows: int) -> None:
    assert np.array_equal(np.sort(order_of(epoch, block_rows)), np.arange(epoch.rows))


def test_seeds_epochs_sections_parts_and_lanes_have_independent_orders() -> None:
    def epoch(seed: int, index: int) -> Epoch:
        return Epoch(np.array([500, 500]), 2, 50, seed, index, True)

    orders = {tuple(order_of(epoch(seed, index), 20).tolist()) for seed in range(8) for index in range(8)}
    assert len(orders) == 64
    one = epoch(0, 0)
    permutations = [*(one.block_order(section, part, 25) for section in range(3) for part in range(3))]
    permutations += [one.part_order(section, 25) for section in range(3)]
    assert len({tuple(order.tolist()) for order in permutations}) == 12
    assert one.lane_order(0).chunk(0).tolist() != one.lane_order(1).chunk(0).tolist()


def test_golden_order() -> None:
    """A change here changes every user's order and invalidates checkpoints."""
    epoch = Epoch(np.array([40, 0, 25, 35]), 4, 6, 3, 2, True)
    assert epoch.sections.tolist() == [3, 0, 1, 2]
    assert epoch.section_ends.tolist() == [35, 75, 75, 100]
    assert epoch.part_order(2, 5).tolist() == [2, 0, 1, 4, 3]
    assert epoch.block_order(2, 0, 7).tolist() == [0, 2, 6, 5, 4, 3, 1]
    assert epoch.block_order(2, 1, 7).tolist() == [0, 2, 4, 6, 3, 1, 5]
    assert [epoch.lane_start(lane) for lane in range(5)] == [0, 25, 50, 75, 100]
    assert epoch.lane_order(1).chunk(0).tolist() == [
        0, 3, 1, 2, 4, 6, 5, 8, 7, 12, 9, 10, 15, 16, 11, 14, 13, 17, 18, 22, 21, 20, 19, 23, 24,
    ]  # fmt: skip


def entropy(labels: Int64Array, batch_size: int) -> float:
    """Mean entropy of the labels of a batch, in bits."""
    found = []
    for batch in labels[: len(labels) // batch_size * batch_size].reshape(-1, batch_size):
        shares = np.unique(batch, return_counts=True)[1] / batch_size
        found.append(-(shares * np.log2(shares)).sum())
    return float(np.mean(found))


def entropy_ratio(blocks: int, shuffle: ShuffleLayout, *, block_rows: int, classes: int, batch_size: int) -> float:
    """The label entropy of batches of a table sorted by class, as a fraction of a uniform shuffle's."""
    rows = blocks * block_rows
    labels = np.arange(rows) * classes // rows
    epoch = Epoch(np.array([rows]), shuffle.lanes, round(shuffle.spread * block_rows), 0, 0, True)
    ours = entropy(labels[order_of(epoch, block_rows)], batch_size)
    return ours / entropy(np.random.default_rng(0).permutation(labels), batch_size)


@pytest.mark.parametrize("batch_size", [64, 256])
@pytest.mark.parametrize(
    ("blocks", "lanes", "spread"), [(96 * 50, 96, 1.0), (24 * 50, 24, 4.0), (100, 2, 48.0), (40, 1, 40.0)]
)
def test_label_entropy_of_a_sorted_table_is_near_a_uniform_shuffle(
    blocks: int, lanes: int, spread: float, batch_size: int
) -> None:
    """The window must hold about a hundred blocks, over many lanes or few."""
    shuffle = ShuffleLayout(lanes, 1, spread)
    assert entropy_ratio(blocks, shuffle, block_rows=40, classes=100, batch_size=batch_size) >= 0.9


def test_label_entropy_detects_a_poor_shuffle() -> None:
    assert entropy_ratio(50, ShuffleLayout(1, 1, 1.0), block_rows=40, classes=100, batch_size=64) < 0.5


@pytest.mark.parametrize(
    ("table_mb", "row_bytes"),
    [(mb, size) for mb in (1, 5, 14, 47, 66, 70, 150, 400, 1500, 6000) for size in (2_000, 20_000, 150_000)
     if mb * 10**6 > 128 * size],
)  # fmt: skip
def test_the_default_options_reach_the_entropy_of_a_uniform_shuffle(table_mb: int, row_bytes: int) -> None:
    shuffle = resolve_shuffle(Shuffle(), table_mb * 10**6, row_bytes, width=1.0)
    blocks = -(-table_mb * 10**6 // shuffle.block_bytes)
    block_rows = max(1, shuffle.block_bytes // row_bytes)
    assert entropy_ratio(blocks, shuffle, block_rows=block_rows, classes=100, batch_size=64) >= 0.95


@pytest.mark.parametrize("table_mb", [1, 30, 33, 40, 70, 150, 300, 500, 550, 700, 1000, 2000, 8000, 30_000])
def test_neighbours_in_the_table_are_not_neighbours_in_the_order(table_mb: int) -> None:
    """A table of 3,000 rows of any size: as in a uniform shuffle if it fits the window, and never as in a poor one."""
    rows, near = 3000, 256
    row_bytes = table_mb * 10**6 / rows
    shuffle = resolve_shuffle(Shuffle(), table_mb * 10**6, row_bytes, width=1.0)
    block_rows = max(1, round(shuffle.block_bytes / row_bytes))
    epoch = Epoch(np.array([rows]), shuffle.lanes, round(shuffle.spread * block_rows), 0, 0, True)
    position = np.argsort(order_of(epoch, block_rows))
    share = float((np.abs(np.diff(position)) <= near).mean())
    uniform = 1 - (1 - near / rows) ** 2
    window = min(1.0, shuffle.lanes * (1 + shuffle.spread) * shuffle.block_bytes / (table_mb * 10**6))
    assert share <= 1.3 * uniform if window >= 1 else share <= 2 * uniform / window


@given(st.integers(1, 300), st.integers(1, 500))
@steady
def test_expected_blocks_matches_a_simulation(batch_size: int, blocks: int) -> None:
    drawn = np.sort(np.random.default_rng(batch_size).integers(0, blocks, (2000, batch_size)))
    mean = float((np.diff(drawn, prepend=-1) > 0).sum(axis=1).mean())
    assert expected_blocks(batch_size, blocks) == pytest.approx(mean, rel=0.06)


def test_quality_is_a_ratio_of_the_expected_number() -> None:
    assert ShuffleQuality(50.0, 100.0).ratio == 0.5
    assert ShuffleQuality(120.0, 100.0).ratio == 1.0
    assert "50 blocks (a uniform shuffle: 100)" in str(ShuffleQuality(50.0, 100.0))
