"""How memory is shared out: within the budget, and workers have batches to make where there is room for them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine._shares import Needs, share_out

MB = 1_000_000
PICTURES = Needs(
    budget_bytes=400 * MB, batch_size=64, batch_bytes=14 * MB, device_batch_bytes=0, by_rows=False, workers=2,
    prefetch_factor=2, window_rows=2_000, row_bytes=24_000.0, device_row_bytes=0, kept_bytes=0, device_free_bytes=None,
    device_memory=None,
)  # fmt: skip


@given(
    budget=st.integers(1 << 20, 1 << 34),
    batch=st.integers(1, 1 << 28),
    workers=st.integers(1, 64),
    window_rows=st.integers(0, 1 << 16),
    by_rows=st.booleans(),
)
def test_batches_and_window_share_the_budget(
    budget: int, batch: int, workers: int, window_rows: int, by_rows: bool
) -> None:
    needs = replace(
        PICTURES, budget_bytes=budget, batch_bytes=batch, workers=workers, window_rows=window_rows, by_rows=by_rows
    )
    shares = share_out(needs)
    waiting = shares.depth * shares.per_span * batch
    assert shares.depth >= 2
    assert shares.window_bytes >= budget // 4
    if shares.depth > 2 and window_rows * needs.row_bytes <= budget // 4:
        assert waiting + shares.window_bytes <= budget
        assert shares.fits
    assert any("workers are busy" in note for note in shares.notes) == (shares.depth < workers)


def test_batches_have_what_the_window_does_not_need() -> None:
    """Sixteen workers make sixteen batches at a time, though a quarter of the budget has room for seven."""
    shares = share_out(replace(PICTURES, workers=16))
    assert shares.depth >= 16
    assert shares.fits
    assert not shares.notes


def test_workers_without_memory_are_told_of() -> None:
    shares = share_out(replace(PICTURES, budget_bytes=100 * MB, workers=8))
    assert shares.notes == (
        "memory_budget (100 MB) leaves room to make 3 batches of 14 MB at a time, so 3 of 8 workers are busy; raise it",
    )
