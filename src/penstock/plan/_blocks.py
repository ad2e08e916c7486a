"""Cut the rows of a fragment into blocks that are read together."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def cut_blocks(rows_upto: Rows, page_bytes: Rows, page_files: Rows, *, block_bytes: int) -> Rows:
    """Blocks of about `block_bytes`, cut only where pages end: for each, how many wanted rows are in front of its end.

    `rows_upto` has the wanted rows in front of each page's end. Pages that hold none count for nothing, and no block
    is empty. A block is in one file, which `page_files` numbers, unless files are much smaller than it: what is in
    two files takes two requests.
    """
    touched = np.diff(rows_upto, prepend=0) > 0
    upto, sizes, files = rows_upto[touched], page_bytes[touched], page_files[touched]
    if not len(upto):
        return np.zeros(0, np.int64)
    alone = np.bincount(files, sizes)[files] * 2 >= block_bytes
    begins = np.append(True, (files[1:] != files[:-1]) & (alone[1:] | alone[:-1]))
    group = np.cumsum(begins) - 1
    ends = np.cumsum(sizes)
    before = (ends - sizes)[begins][group]
    whole = np.bincount(group, sizes)[group]
    blocks = np.maximum(1, np.round(whole / block_bytes))
    number = ((ends - before - sizes / 2) * blocks // whole).astype(np.int64)  # a page belongs where its middle is
    last = np.append((number[1:] != number[:-1]) | begins[1:], True)
    return np.asarray(upto[last], np.int64)
