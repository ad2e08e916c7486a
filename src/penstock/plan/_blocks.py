"""Cut the rows of a fragment into blocks that are read together."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def cut_blocks(rows_upto: Rows, page_bytes: Rows, *, block_bytes: int) -> Rows:
    """Blocks of about `block_bytes`, cut only where pages end: for each, how many wanted rows are in front of its end.

    `rows_upto` has the wanted rows in front of each page's end. Pages that hold none count for nothing, and no block
    is empty.
    """
    touched = np.diff(rows_upto, prepend=0) > 0
    upto, sizes = rows_upto[touched], page_bytes[touched]
    if not len(upto):
        return np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    blocks = max(1, round(int(ends[-1]) / block_bytes))
    number = ((ends - sizes / 2) * blocks // ends[-1]).astype(np.int64)  # a page belongs where its middle is
    last = np.append(number[1:] != number[:-1], True)
    return np.asarray(upto[last], np.int64)
