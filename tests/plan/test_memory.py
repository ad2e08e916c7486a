"""The split of the memory budget between the window and prefetched batches."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import MemoryNeeds, split_budget

MB = 1_000_000
IMAGES = MemoryNeeds(
    budget_bytes=400 * MB, batch_size=64, batch_bytes=14 * MB, device_batch_bytes=0, by_rows=False, workers=2,
    prefetch_factor=2, copies=0, shares_spans=False, growth=1,
    window_rows=2_000, window_bytes=48 * MB, flight_bytes=0, window_row_bytes=0, spans_read=0, device_row_bytes=0,
    cache_bytes=0, device_free_bytes=None, device_memory=None,
)  # fmt: skip


@given(
    total_bytes=st.integers(1 << 20, 1 << 34),
    batch=st.integers(1, 1 << 28),
    workers=st.integers(1, 64),
    window_rows=st.integers(0, 1 << 16),
    by_rows=st.booleans(),
    copies=st.integers(0, 3),
)
def test_batches_and_window_share_the_budget(
    total_bytes: int, batch: int, workers: int, window_rows: int, by_rows: bool, copies: int
) -> None:
    needs = replace(
        IMAGES, budget_bytes=total_bytes, batch_bytes=batch, workers=workers, copies=copies,
        window_rows=window_rows, window_bytes=window_rows * 24_000, by_rows=by_rows,
    )  # fmt: skip
    budget = split_budget(needs)
    depth = budget.spans.depth
    waiting = (depth + copies * min(depth, workers)) * budget.batches_per_span * batch
    assert depth >= 1
    assert budget.window_bytes >= total_bytes // 4
    if depth > 1 and needs.window_bytes <= total_bytes // 4:
        assert waiting + budget.window_bytes <= total_bytes
        assert budget.window_fits
    assert any("workers are busy" in note for note in budget.notes) == (depth < workers)


def test_batches_get_the_memory_that_the_window_does_not_need() -> None:
    """Sixteen workers build sixteen batches at a time, though a quarter of the budget holds seven."""
    budget = split_budget(replace(IMAGES, workers=16))
    assert budget.spans.depth >= 16
    assert budget.window_fits
    assert not budget.notes


def test_a_note_reports_workers_without_memory() -> None:
    budget = split_budget(replace(IMAGES, budget_bytes=100 * MB, workers=8))
    assert budget.notes == (
        "memory_budget (100 MB) leaves room to make 3 batches of 14 MB at a time, so 3 of 8 workers are busy; raise it",
    )


def test_spans_that_turn_out_larger_are_built_less_far_ahead() -> None:
    ahead = split_budget(replace(IMAGES, growth=4, copies=1)).spans
    first = ahead.depth
    ahead.record(14 * MB)
    expected = ahead.depth
    assert first < expected
    ahead.record(56 * MB)
    assert ahead.depth < expected
    ahead.record(10_000 * MB)
    assert ahead.depth == 1
    for _ in range(100):
        ahead.record(14 * MB)
    assert ahead.depth == expected


def test_spans_of_unknown_size_are_built_one_at_a_time_until_one_is_measured() -> None:
    budget = split_budget(replace(IMAGES, batch_bytes=MB, growth=math.inf))
    ahead = budget.spans
    assert (budget.batches_per_span, ahead.depth) == (1, 1)
    ahead.record(14 * MB)
    assert ahead.depth > 1


def test_the_first_span_of_unknown_size_is_built_alone_even_if_it_exceeds_the_budget() -> None:
    ahead = split_budget(replace(IMAGES, batch_bytes=800 * MB, growth=math.inf)).spans
    assert ahead.depth == 1
    ahead.record(14 * MB)
    assert ahead.depth == 1, "not more than the expected size allows"
