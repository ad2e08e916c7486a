"""Split the rows of a fragment into blocks that are read together."""

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def split_blocks(
    row_ends: Int64Array, page_bytes: Int64Array, page_files: Int64Array, *, block_bytes: int
) -> Int64Array:
    """Split pages into blocks of about `block_bytes`; return the row end of each block.

    `row_ends` counts the selected rows up to the end of each page. Blocks end at page boundaries and are never empty;
    pages without selected rows are ignored. A block stays within one file (`page_files` has the file index of pages),
    unless files are much smaller than a block, because each file costs a request.
    """
    selected = np.diff(row_ends, prepend=0) > 0
    row_ends, sizes, files = row_ends[selected], page_bytes[selected], page_files[selected]
    if not len(row_ends):
        return np.zeros(0, np.int64)
    separate = np.bincount(files, sizes)[files] * 2 >= block_bytes
    group_starts = np.append(True, (files[1:] != files[:-1]) & (separate[1:] | separate[:-1]))
    group = np.cumsum(group_starts) - 1
    byte_ends = np.cumsum(sizes)
    bytes_before_group = (byte_ends - sizes)[group_starts][group]
    group_bytes = np.bincount(group, sizes)[group]
    group_blocks = np.maximum(1, np.round(group_bytes / block_bytes))
    # A page belongs to the block that contains its middle.
    block = ((byte_ends - bytes_before_group - sizes / 2) * group_blocks // group_bytes).astype(np.int64)
    block_ends = np.append((block[1:] != block[:-1]) | group_starts[1:], True)
    return np.asarray(row_ends[block_ends], np.int64)
