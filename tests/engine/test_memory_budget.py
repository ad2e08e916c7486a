"""The split of the memory budget between the window and prefetched batches."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine._memory_budget import MemoryNeeds, split_budget

MB = 1_000_000
IMAGES = MemoryNeeds(
    budget_bytes=400 * MB, batch_size=64, batch_bytes=14 * MB, device_batch_bytes=0, by_rows=False, workers=2,
    prefetch_factor=2, window_rows=2_000, row_bytes=24_000.0, device_row_bytes=0, cache_bytes=0, device_free_bytes=None,
    device_memory=None,
)  # fmt: skip


@given(
    total_bytes=st.integers(1 << 20, 1 << 34),
    batch=st.integers(1, 1 << 28),
    workers=st.integers(1, 64),
    window_rows=st.integers(0, 1 << 16),
    by_rows=st.booleans(),
)
def test_batches_and_window_share_the_budget(
    total_bytes: int, batch: int, workers: int, window_rows: int, by_rows: bool
) -> None:
    needs = replace(
        IMAGES, budget_bytes=total_bytes, batch_bytes=batch, workers=workers, window_rows=window_rows, by_rows=by_rows
    )
    budget = split_budget(needs)
    waiting = budget.prefetch_spans * budget.batches_per_span * batch
    assert budget.prefetch_spans >= 2
    assert budget.window_bytes >= total_bytes // 4
    if budget.prefetch_spans > 2 and window_rows * needs.row_bytes <= total_bytes // 4:
        assert waiting + budget.window_bytes <= total_bytes
        assert budget.window_fits
    assert any("workers are busy" in note for note in budget.notes) == (budget.prefetch_spans < workers)


def test_batches_get_the_memory_that_the_window_does_not_need() -> None:
    """Sixteen workers build sixteen batches at a time, though a quarter of the budget holds seven."""
    budget = split_budget(replace(IMAGES, workers=16))
    assert budget.prefetch_spans >= 16
    assert budget.window_fits
    assert not budget.notes


def test_a_note_reports_workers_without_memory() -> None:
    budget = split_budget(replace(IMAGES, budget_bytes=100 * MB, workers=8))
    assert budget.notes == (
        "memory_budget (100 MB) leaves room to make 3 batches of 14 MB at a time, so 3 of 8 workers are busy; raise it",
    )
