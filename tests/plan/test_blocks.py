"""Blocks cover all rows, end where pages end, hold about as much as asked for, and are never empty."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plan import cut_blocks

pages = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), max_size=60)
"""For each page how many of its rows are wanted, and its bytes."""


@given(pages, st.integers(1, 5000))
@settings(deadline=None)
@example([], 10)
@example([(0, 10), (0, 10)], 10)
@example([(0, 10), (3, 1000), (0, 10)], 1)
def test_blocks(found: list[tuple[int, int]], block_bytes: int) -> None:
    rows = np.array([count for count, _ in found], np.int64)
    sizes = np.array([size for _, size in found], np.int64)
    upto = np.cumsum(rows)
    blocks = cut_blocks(upto, sizes, block_bytes=block_bytes)
    assert (np.diff(blocks, prepend=0) > 0).all()
    assert set(blocks.tolist()) <= set(upto.tolist())
    assert (blocks[-1:].tolist() or [0]) == [rows.sum()]
    touched = rows > 0
    total = int(sizes[touched].sum())
    if not total:
        return
    number = np.searchsorted(blocks, upto[touched], side="left")
    in_block = np.bincount(number, weights=sizes[touched])
    equal = total / max(1, round(total / block_bytes))
    assert np.abs(in_block - equal).max() <= sizes[touched].max()
    assert equal <= 1.5 * block_bytes or total < 1.5 * block_bytes


def test_equal_pages_make_equal_blocks() -> None:
    upto = np.arange(1, 101) * 7
    assert cut_blocks(upto, np.full(100, 64), block_bytes=256).tolist() == (np.arange(1, 26) * 28).tolist()
    assert cut_blocks(upto, np.full(100, 64), block_bytes=10).tolist() == upto.tolist()
    assert cut_blocks(upto, np.full(100, 64), block_bytes=1 << 40).tolist() == [700]
