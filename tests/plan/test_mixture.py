"""Mixtures: every prefix is in proportion, and ranks partition every step."""

from fractions import Fraction
from itertools import takewhile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import (
    MixtureOrder,
    MixturePartitioner,
    Schedule,
    Shuffle,
    mixture_rows,
    resolve_shuffle,
    segments_of,
    whole_weights,
)
from penstock.types import World

steady = settings(deadline=None, max_examples=40)
decimals = st.lists(st.sampled_from([0, 0.05, 0.1, 0.3, 0.7, 1, 2, 0.015625]), min_size=1, max_size=6).filter(any)
odd = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=5).filter(lambda w: sum(w) > 1e-9)
weights = st.one_of(decimals, odd).map(whole_weights)


def order_of(*schedule: tuple[int, tuple[int, ...]]) -> MixtureOrder:
    return MixtureOrder(segments_of(schedule, start=0, taken=(0,) * len(schedule[0][1])))


def test_weights_are_exact_decimals() -> None:
    assert whole_weights([0.7, 0.3]) == (7, 3)
    assert whole_weights([2, 0, 4]) == (1, 0, 2)
    assert whole_weights([0.1, 0.2, 0.7]) == (1, 2, 7)


@given(weights, st.integers(0, 100_000), st.integers(1, 800))
@steady
def test_every_prefix_has_each_source_within_one_of_its_share(weights: tuple[int, ...], first: int, count: int) -> None:
    order, total = order_of((0, weights)), sum(weights)
    first = 0 if total > 1 << 24 else first
    sources, numbers = order.rows(first, first + count)
    counts = order.counts(first).tolist()
    for index, (source, number) in enumerate(zip(sources.tolist(), numbers.tolist(), strict=True)):
        assert number == counts[source]
        counts[source] += 1
        for weight, taken in zip(weights, counts, strict=True):
            assert abs(taken - Fraction((first + index + 1) * weight, total)) < 1
    assert order.counts(first + count).tolist() == counts


@given(weights, st.integers(0, 20_000), st.integers(0, 20_000), st.integers(1, 200))
@steady
def test_a_run_that_starts_with_known_counts_reads_the_same(
    weights: tuple[int, ...], known: int, after: int, count: int
) -> None:
    order = order_of((0, weights))
    started = MixtureOrder(order.segments, (known, tuple(order.counts(known).tolist())))
    for mine, theirs in zip(order.rows(known + after, known + after + count),
                            started.rows(known + after, known + after + count), strict=True):  # fmt: skip
        assert np.array_equal(mine, theirs)


@given(
    st.lists(decimals.filter(lambda w: len(w) >= 2).map(lambda w: whole_weights([*w[:2], 1])), min_size=2, max_size=4),
    st.data(),
)
@steady
def test_each_segment_of_a_schedule_is_in_proportion(parts: list[tuple[int, ...]], data: st.DataObject) -> None:
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, 300), min_size=len(parts) - 1, max_size=len(parts) - 1)))]
    order = order_of(*zip(starts, parts, strict=True))
    sources, numbers = order.rows(0, 400)
    for source in range(3):
        assert np.array_equal(numbers[sources == source], np.arange(np.count_nonzero(sources == source)))
    for start, end, weights in zip(starts, [*starts[1:], 400], parts, strict=True):
        for stop in range(start + 1, end + 1):
            counts = np.bincount(sources[start:stop], minlength=3).tolist()
            for weight, count in zip(weights, counts, strict=True):
                assert abs(count - Fraction((stop - start) * weight, sum(weights))) < 1


@given(decimals.map(whole_weights), st.data())
@steady
def test_an_epoch_ends_with_its_first_or_its_last_source(weights: tuple[int, ...], data: st.DataObject) -> None:
    rows = [data.draw(st.integers(1, 200)) for _ in weights]
    order = order_of((0, weights))
    first, last = (mixture_rows(order.segments, rows, all_sources=every) for every in (False, True))
    assert first is not None
    assert all(order.counts(first) <= rows)
    read = [
        (count, size, weight) for count, size, weight in zip(order.counts(first), rows, weights, strict=True) if weight
    ]
    assert any(count > size - 1 - Fraction(weight, sum(weights)) for count, size, weight in read)
    assert (last is None) == (0 in weights)
    if last is not None:
        assert all(order.counts(last) >= rows)
        assert any(order.counts(last) <= np.array(rows) + 1)


def test_sources_in_proportion_to_their_rows_are_all_read_once() -> None:
    rows = (1281, 400, 77)
    order = order_of((0, whole_weights(rows)))
    assert mixture_rows(order.segments, rows, all_sources=False) == sum(rows)
    assert mixture_rows(order.segments, rows, all_sources=True) == sum(rows)
    assert tuple(order.counts(sum(rows))) == rows


def test_an_epoch_may_end_in_a_later_segment() -> None:
    segments = segments_of(((0, (1, 1)), (10, (1, 0)), (50, (1, 1))), start=0, taken=(0, 0))
    assert mixture_rows(segments, (40, 1000), all_sources=False) == 45
    assert mixture_rows(segments, (60, 100), all_sources=False) == 80
    assert mixture_rows(segments, (5, 5), all_sources=True) == 10
    assert mixture_rows(segments[:2], (5, 6), all_sources=True) is None


@given(st.integers(1 << 20, 1 << 42), st.sampled_from([100.0, 3000.0, 150_000.0]), st.floats(1, 3))
@steady
def test_a_table_has_a_smaller_window_in_a_mixture(table_bytes: int, row_bytes: float, width: float) -> None:
    alone, mixed = (
        resolve_shuffle(Shuffle(), table_bytes, row_bytes, width=width, in_mixture=mixed) for mixed in (False, True)
    )
    window = mixed.block_bytes * width * mixed.lanes * (1 + mixed.spread)
    assert window <= max((256 << 20) + 2 * mixed.block_bytes * width * mixed.lanes, table_bytes * width * 2.5)
    assert mixed.block_bytes >= alone.block_bytes


worlds = st.integers(1, 9)


def partitioners(
    weights: tuple[int, ...], ranks: int, batch_size: int, rows: int, *, single: bool
) -> list[MixturePartitioner]:
    return [
        MixturePartitioner(
            rows, 24, World(rank, ranks), batch_size, False,
            order=order_of((0, weights)), source_lanes=(24,) * len(weights), whole_batches=single,
        )
        for rank in range(ranks)
    ]  # fmt: skip


@given(weights, worlds, st.integers(1, 20), st.integers(0, 300), st.integers(0, 2), st.booleans())
@steady
def test_ranks_partition_every_step_of_a_mixture(
    weights: tuple[int, ...], ranks: int, batch_size: int, rows: int, epoch: int, single: bool
) -> None:
    if single:
        rows -= rows % batch_size
    every = partitioners(weights, ranks, batch_size, rows, single=single)
    order = every[0].order
    spans = [list(takewhile(lambda span: span.epoch == epoch, Schedule(each, 3).run(epoch, 0))) for each in every]
    seen: list[tuple[int, int]] = []
    for steps in zip(*spans, strict=True):
        found: list[tuple[int, int]] = []
        for partitioner, span in zip(every, steps, strict=True):
            sources, numbers, padding, _ = partitioner.rank_rows(span)
            assert len(sources) == span.rows
            assert padding is None or not span.complete
            real = np.ones(len(sources), bool) if padding is None else ~padding
            rows_of_rank = list(zip(sources.tolist(), numbers.tolist(), strict=True))
            found += [row for row, is_real in zip(rows_of_rank, real, strict=True) if is_real]
            if single:
                for batch in sources.reshape(-1, batch_size):
                    assert len(set(batch.tolist())) == 1
            parts = partitioner.source_rows(span)
            places = np.concatenate([np.asarray(part.places) for part in parts])
            assert np.array_equal(np.sort(places), np.arange(len(sources)))
            for source, part in enumerate(parts):
                assert (sources[part.places] == source).all()
                assert np.array_equal(numbers[part.places], part.numbers)
        seen += sorted(found)
    if single:
        wanted_sources, wanted_numbers = order.rows(epoch * rows // batch_size, (epoch + 1) * rows // batch_size)
        wanted = [(s, n * batch_size + k) for s, n in zip(wanted_sources.tolist(), wanted_numbers.tolist(), strict=True)
                  for k in range(batch_size)]  # fmt: skip
    else:
        found_sources, found_numbers = order.rows(epoch * rows, (epoch + 1) * rows)
        wanted = list(zip(found_sources.tolist(), found_numbers.tolist(), strict=True))
    assert sorted(seen) == sorted(wanted)


@given(st.sampled_from([(7, 3), (1, 1), (9, 1)]), st.sampled_from([2, 3, 4, 8]), st.integers(1, 30))
@steady
def test_two_sources_keep_every_rank_in_its_own_lanes(weights: tuple[int, int], ranks: int, batch_size: int) -> None:
    [first, *_] = partitioners(weights, ranks, batch_size, 40 * ranks * batch_size, single=False)
    assert first.read_amplification == 1
    assert first.owns_lanes


def test_many_sources_move_few_rows_to_other_ranks() -> None:
    [first, *_] = partitioners((7, 5, 3, 2), 8, 64, 1 << 20, single=False)
    assert 1 < first.read_amplification < 1.05
