"""Checks of a leaf manifest: readers use its counts and offsets as indices and sizes without checking them again."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format._dtypes import numbers_of
from penstock.format._fragment import unpack_bitmap
from penstock.types import RowRange

MAX_FRAGMENT_ROWS = 1 << 31


def check_leaf(batch: pa.RecordBatch, *, fragments: int, rows: int, live: int, bytes: int, row_ids: RowRange) -> None:
    """Raise `ValueError` unless a leaf agrees with its parent, whose totals are given, and with itself.

    Every index then stays in its array.
    """
    counts, kept = numbers_of(batch.column("rows")), numbers_of(batch.column("live"))
    require(bool((counts >= 1).all() and (counts <= MAX_FRAGMENT_ROWS).all()), "the rows of a fragment")
    require(len(counts) == fragments and int(counts.sum()) == rows, "its totals")
    require(int(kept.sum()) == live, "its live rows")
    for row, deleted in enumerate(batch.column("deleted").to_pylist()):
        require(not deleted or len(deleted) == -(-int(counts[row]) // 8), "the deleted rows of a fragment")
        count = int(unpack_bitmap(deleted, int(counts[row])).sum()) if deleted else 0
        require(int(kept[row]) == int(counts[row]) - count, "the live rows of a fragment")
    runs = batch.column("row_ids")
    starts, ends = (numbers_of(runs.flatten().field(name)) for name in ("start", "end"))
    require(bool((starts >= row_ids.start).all() and (ends <= row_ids.end).all()), "row ids")
    require(bool((starts <= ends).all() and (ends - starts <= MAX_FRAGMENT_ROWS).all()), "a range of row ids")
    require(bool((_sums(ends - starts, _lengths(runs)) == counts).all()), "the number of row ids")
    _check_files(batch.column("files"), counts, bytes)


def _check_files(column: pa.ListArray, fragment_rows: npt.NDArray[np.int64], total_bytes: int) -> None:
    files, owner = column.flatten(), np.repeat(np.arange(len(column)), _lengths(column))

    def numbers(name: str) -> npt.NDArray[Any]:
        return numbers_of(files.field(name))

    def items(name: str) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        return files.field(name).flatten(), _lengths(files.field(name))

    length, row_start, rows = numbers("length"), numbers("row_start"), numbers("rows")
    blobs, _ = items("blobs")
    require(bool((length >= 0).all()) and bool((numbers_of(blobs.field("length")) >= 0).all()), "a length")
    stored_bytes = sum(length.tolist()) + sum(blobs.field("length").to_pylist())
    require(stored_bytes == total_bytes, "its bytes")
    require(bool((row_start >= 0).all() and (rows >= 1).all()), "the rows of a file")
    require(bool((rows <= fragment_rows[owner]).all()), "the rows of a file")
    require(bool((row_start <= fragment_rows[owner] - rows).all()), "the rows of a file")
    fields, columns = items("fields")
    (page_rows, pages), (offsets, bounds) = items("page_rows"), items("page_offsets")
    (_, crc_counts), (starts, start_counts) = items("page_crcs"), items("value_starts")
    require(bool((columns >= 1).all() and (pages >= 1).all() and (bounds == pages + 1).all()), "the pages of a file")
    require(bool((crc_counts == pages).all() and (start_counts == pages * columns).all()), "the pages of a file")
    require(
        bool((numbers_of(page_rows) >= 1).all() and (_sums(numbers_of(page_rows), pages) == rows).all()),
        "the rows of a page",
    )
    last = np.cumsum(bounds) - 1
    at = numbers_of(offsets)
    require(bool((at >= 0).all() and (at[last] <= length).all()), "the offset of a page")  # so that sizes fit 64 bits
    sizes = np.delete(np.diff(at), last[:-1])
    require(bool((sizes > 0).all()), "the offset of a page")
    inside = numbers_of(starts)
    require(bool((inside >= -1).all() and (inside < np.repeat(sizes, np.repeat(columns, pages))).all()), "the values")
    of_file = np.repeat(np.arange(len(files)), columns)
    _check_coverage(owner[of_file], numbers_of(fields), row_start[of_file], rows[of_file], fragment_rows)
    changed, changes = items("changed")
    bitmaps = numbers_of(pc.binary_length(changed.field("rows")))
    require(bool(((bitmaps == 0) | (bitmaps == -(-np.repeat(rows, changes) // 8))).all()), "the changed rows of a file")


def _check_coverage(
    owner: npt.NDArray[np.int64],
    fields: npt.NDArray[np.int64],
    row_start: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    fragment_rows: npt.NDArray[np.int64],
) -> None:
    """Raise `ValueError` unless the files of each field cover all rows of their fragment once."""
    order = np.lexsort((row_start, fields, owner))
    owner, fields, row_start, rows = owner[order], fields[order], row_start[order], rows[order]
    new = np.ones(len(order) + 1, bool)
    new[1:-1] = (np.diff(owner) != 0) | (np.diff(fields) != 0)
    expected = np.where(new[:-1], 0, np.roll(row_start + rows, 1))
    complete = ~new[1:] | (row_start + rows == fragment_rows[owner])
    require(bool((row_start == expected).all() and complete.all()), "the rows that the files of a column cover")


def _lengths(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    """The number of items of each list."""
    return np.diff(numbers_of(lists.offsets)).astype(np.int64)


def _sums(values: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of the items of each list, given all items and the number in each."""
    totals = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    return np.asarray(totals[ends] - totals[ends - lengths], np.int64)


def require(condition: bool, what: str) -> None:
    """Raise `ValueError` that names what is wrong."""
    if not condition:
        raise ValueError(f"{what} cannot be right")
