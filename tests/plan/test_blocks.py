"""Blocks cover all rows, end at page boundaries, have about the target size, and are never empty."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plan import split_blocks

pages = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), max_size=60)
"""The number of selected rows and the bytes of each page."""


@given(pages, st.integers(1, 5000), st.lists(st.integers(0, 60), max_size=8))
@settings(deadline=None)
@example([], 10, [])
@example([(0, 10), (0, 10)], 10, [1])
@example([(0, 10), (3, 1000), (0, 10)], 1, [])
def test_blocks_partition_the_rows_at_page_boundaries(
    found: list[tuple[int, int]], block_bytes: int, boundaries: list[int]
) -> None:
    rows = np.array([count for count, _ in found], np.int64)
    sizes = np.array([size for _, size in found], np.int64)
    files = np.searchsorted(np.sort(np.array(boundaries, np.int64)), np.arange(len(rows)), side="right")
    row_ends = np.cumsum(rows)
    blocks = split_blocks(row_ends, sizes, files, block_bytes=block_bytes)
    assert (np.diff(blocks, prepend=0) > 0).all()
    assert set(blocks.tolist()) <= set(row_ends.tolist())
    assert (blocks[-1:].tolist() or [0]) == [rows.sum()]
    selected = rows > 0
    if not selected.any():
        return
    block_of_page = np.searchsorted(blocks, row_ends[selected], side="left")
    block_sizes = np.bincount(block_of_page, weights=sizes[selected])
    assert block_sizes.max() <= 1.5 * block_bytes + sizes[selected].max()
    file_sizes = np.bincount(files[selected], weights=sizes[selected])
    for block in range(len(blocks)):
        block_files = set(files[selected][block_of_page == block].tolist())
        assert len(block_files) == 1 or all(2 * file_sizes[file] < block_bytes for file in block_files), (
            "a block spans files only if they are small"
        )


def test_equal_pages_give_equal_blocks() -> None:
    row_ends, sizes, files = np.arange(1, 101) * 7, np.full(100, 64), np.zeros(100, np.int64)
    assert split_blocks(row_ends, sizes, files, block_bytes=256).tolist() == (np.arange(1, 26) * 28).tolist()
    assert split_blocks(row_ends, sizes, files, block_bytes=10).tolist() == row_ends.tolist()
    assert split_blocks(row_ends, sizes, files, block_bytes=1 << 40).tolist() == [700]


def test_blocks_are_even_within_a_file_and_end_at_its_boundary() -> None:
    row_ends, sizes, files = np.arange(1, 33), np.full(32, 100), np.repeat([0, 1], [20, 12])
    assert split_blocks(row_ends, sizes, files, block_bytes=600).tolist() == [7, 13, 20, 26, 32]
