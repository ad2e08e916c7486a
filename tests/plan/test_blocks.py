"""Blocks cover all rows, end where pages end, hold about as much as asked for, and are never empty."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plan import cut_blocks

pages = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), max_size=60)
"""For each page how many of its rows are wanted, and its bytes."""


@given(pages, st.integers(1, 5000), st.lists(st.integers(0, 60), max_size=8))
@settings(deadline=None)
@example([], 10, [])
@example([(0, 10), (0, 10)], 10, [1])
@example([(0, 10), (3, 1000), (0, 10)], 1, [])
def test_blocks(found: list[tuple[int, int]], block_bytes: int, cuts: list[int]) -> None:
    rows = np.array([count for count, _ in found], np.int64)
    sizes = np.array([size for _, size in found], np.int64)
    files = np.searchsorted(np.sort(np.array(cuts, np.int64)), np.arange(len(rows)), side="right")
    upto = np.cumsum(rows)
    blocks = cut_blocks(upto, sizes, files, block_bytes=block_bytes)
    assert (np.diff(blocks, prepend=0) > 0).all()
    assert set(blocks.tolist()) <= set(upto.tolist())
    assert (blocks[-1:].tolist() or [0]) == [rows.sum()]
    touched = rows > 0
    if not touched.any():
        return
    number = np.searchsorted(blocks, upto[touched], side="left")
    in_block = np.bincount(number, weights=sizes[touched])
    assert in_block.max() <= 1.5 * block_bytes + sizes[touched].max()
    in_file = np.bincount(files[touched], weights=sizes[touched])
    for block in range(len(blocks)):
        of = set(files[touched][number == block].tolist())
        assert len(of) == 1 or all(2 * in_file[file] < block_bytes for file in of), "files of a size are not mixed"


def test_equal_pages_make_equal_blocks() -> None:
    upto, sizes, files = np.arange(1, 101) * 7, np.full(100, 64), np.zeros(100, np.int64)
    assert cut_blocks(upto, sizes, files, block_bytes=256).tolist() == (np.arange(1, 26) * 28).tolist()
    assert cut_blocks(upto, sizes, files, block_bytes=10).tolist() == upto.tolist()
    assert cut_blocks(upto, sizes, files, block_bytes=1 << 40).tolist() == [700]


def test_a_file_is_cut_evenly_and_two_files_are_cut_between() -> None:
    upto, sizes, files = np.arange(1, 33), np.full(32, 100), np.repeat([0, 1], [20, 12])
    assert cut_blocks(upto, sizes, files, block_bytes=600).tolist() == [7, 13, 20, 26, 32]
