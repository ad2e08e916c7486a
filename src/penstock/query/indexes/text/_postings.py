"""Postings in blocks: the rows of a word, how often each has it and how long each is, as bytes of the least width."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CorruptError
from penstock.table import Int64Array

Numbers = npt.NDArray[np.integer[Any]]
"""Integers of any width: the bytes of a page as they are."""

MAX_BLOCK = 1 << 16
"""Postings of a block, and row ids of a block of lengths."""

_LARGEST = 1 << 46
"""Of the numbers of a block, whose sum is then an int64."""

_FEW = 1 << 12
_WIDTHS = {0, 1, 2, 4, 8}
_DTYPES = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}

_BLOCK_FIELDS = [pa.field("first", pa.int64()), pa.field("count", pa.int32()), pa.field("rows", pa.binary())]

POSTINGS = pa.schema(
    [("key", pa.string()), *_BLOCK_FIELDS, pa.field("counts", pa.binary()), pa.field("lengths", pa.binary())]
)
"""A block of postings of the word `key`: its rows are `first` - 1 plus the running sum of `rows`."""
LENGTHS = pa.schema([("key", pa.int64()), *_BLOCK_FIELDS, pa.field("lengths", pa.binary())])
"""The lengths of the rows whose id divided by `MAX_BLOCK` is `key`; rows without a value are missing."""
POSITIONS = pa.schema([("key", pa.string()), ("count", pa.int32()), ("positions", pa.binary())])
"""Where the word `key` is in its rows, in the order of its postings: steps from one occurrence to the next."""


class Postings(NamedTuple):
    """Rows with a word, in ascending order."""

    rows: Int64Array
    counts: Numbers
    """How often each row has the word."""
    lengths: Numbers
    """The number of words of each row."""
    positions: Int64Array | None = None
    """Where the word is, row by row; None if not asked for."""

    def kept(self, keep: npt.NDArray[np.bool_]) -> "Postings":
        """The postings of some rows."""
        positions = None if self.positions is None else self.positions[np.repeat(keep, self.counts)]
        return Postings(self.rows[keep], self.counts[keep], self.lengths[keep], positions)


_NONE = np.zeros(0, np.int64)
NO_POSTINGS = Postings(_NONE, _NONE, _NONE, _NONE)


def join_postings(parts: Sequence[Postings]) -> Postings:
    """Postings of distinct rows as one, in ascending order."""
    if len(parts) == 1:
        found = parts[0]
    elif not parts:
        return NO_POSTINGS
    else:
        with_positions = [part.positions for part in parts if part.positions is not None]
        found = Postings(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate(with_positions) if len(with_positions) == len(parts) else None,
        )
    if (found.rows[1:] > found.rows[:-1]).all():
        return found
    order = np.argsort(found.rows, kind="stable")
    positions = found.positions
    if positions is not None:
        positions = positions[ranges(run_starts(found.counts)[:-1][order], found.counts[order])]
    return Postings(found.rows[order], found.counts[order], found.lengths[order], positions)


def run_starts(counts: Numbers) -> Int64Array:
    """The first index of each of consecutive runs, and the end of the last."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def ranges(starts: Int64Array, counts: Numbers) -> Int64Array:
    """The integers of consecutive ranges, as one array."""
    ends = run_starts(counts)
    return np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])


def pack_numbers(values: Numbers, counts: Int64Array) -> pa.Array:
    """Consecutive blocks of positive numbers as bytes: 1, 2, 4 or 8 for each number, none for a block of ones."""
    if not len(counts):
        return pa.array([], pa.binary())
    starts = run_starts(counts)[:-1]
    largest = np.maximum.reduceat(values, starts)
    widths = np.array([0, 1, 2, 4, 8])[np.searchsorted([1, 0xFF, 0xFFFF, 0xFFFFFFFF], largest)]
    parts, members = [], []
    for width in np.unique(widths).tolist():
        chosen = widths == width
        members.append(np.flatnonzero(chosen))
        numbers = values[_NONE] if not width else values if chosen.all() else values[np.repeat(chosen, counts)]
        data = numbers.astype(f"<u{width}") if width else numbers
        offsets = run_starts(counts[chosen] * width)
        parts.append(pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]))  # fmt: skip
    found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(members))))
    return found.cast(pa.binary())


def unpack_numbers(packed: pa.Array, counts: Int64Array, where: str) -> Numbers:
    """The numbers of blocks of known counts; raises `CorruptError` for bytes that `pack_numbers` does not write."""
    offsets = np.frombuffer(packed.buffers()[1], np.int32)[packed.offset : packed.offset + len(packed) + 1]
    sizes = offsets[1:] - offsets[:-1]
    widths = sizes // counts
    if (widths * counts != sizes).any() or not set(widths.tolist()) <= _WIDTHS:
        raise CorruptError(f"{where}: a block has a number of bytes that does not fit its count")
    total, widest = int(counts.sum()), int(widths.max(initial=0))
    if not widest:
        return np.ones(total, np.uint8)
    if widths.min() == widest:
        found: Numbers = np.frombuffer(packed.buffers()[2], _DTYPES[widest], total, int(offsets[0]))
    else:
        found = np.ones(total, _DTYPES[widest])
        _fill_blocks(found, packed, counts, widths)
    if not found.all() or (widest == 8 and found.max() > _LARGEST):
        raise CorruptError(f"{where}: a block has an impossible number")
    return found


def _fill_blocks(found: Numbers, packed: pa.Array, counts: Int64Array, widths: Int64Array) -> None:
    """Write the numbers of blocks with different widths."""
    for width in np.unique(widths[widths > 0]).tolist():
        chosen = widths == width
        joined = packed.filter(pa.array(chosen))
        first = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset]
        numbers = np.frombuffer(joined.buffers()[2], f"<u{width}", int(counts[chosen].sum()), int(first))
        found[np.repeat(chosen, counts)] = numbers


def block_bounds(is_new: npt.NDArray[np.bool_]) -> Int64Array:
    """The first index of each block, and the end: a block starts where `is_new`, and has `MAX_BLOCK` values at most."""
    bounds = np.append(np.flatnonzero(is_new), len(is_new))
    sizes = np.diff(bounds)
    if len(sizes) and sizes.max() > MAX_BLOCK:
        parts = -(-sizes // MAX_BLOCK)
        steps = ranges(np.zeros(len(parts), np.int64), parts) * MAX_BLOCK
        bounds = np.append(np.repeat(bounds[:-1], parts) + steps, len(is_new))
    return bounds


def encode_blocks(keys: pa.Array, groups: Int64Array, postings: Postings, *, with_counts: bool) -> pa.Table:
    """Postings of consecutive keys as blocks; `groups` has the key of each posting as an index into `keys`."""
    rows = postings.rows
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (groups[1:] != groups[:-1]) | (rows[1:] <= rows[:-1])
    bounds = block_bounds(is_new)
    starts, counts = bounds[:-1], np.diff(bounds)
    steps = np.ones(len(rows), np.int64)
    steps[1:] = rows[1:] - rows[:-1]
    steps[starts] = 1
    columns = {
        "key": keys.take(pa.array(groups[starts])),
        "first": pa.array(rows[starts]),
        "count": pa.array(counts.astype(np.int32)),
        "rows": pack_numbers(steps, counts),
    }
    if with_counts:
        columns["counts"] = pack_numbers(postings.counts, counts)
    columns["lengths"] = pack_numbers(postings.lengths, counts)
    return pa.table(columns).cast(POSTINGS if with_counts else LENGTHS)


def decode_blocks(entries: pa.RecordBatch, where: str) -> tuple[Int64Array, Postings]:
    """The number of postings of each block, and all postings in order; raises `CorruptError` for impossible values.

    Lengths of `LENGTHS` are one more than those of the rows, so that they are positive.
    """
    counts = block_counts(entries, where)
    if len(entries) == 1 and counts[0] < _FEW:
        return counts, _decode_block(entries, int(counts[0]), where)
    steps = unpack_numbers(entries.column("rows"), counts, where)
    starts = run_starts(counts)[:-1]
    first = _numbers(entries, "first")
    rows = np.cumsum(steps, dtype=np.int64)
    rows += np.repeat(first - rows[starts], counts)
    if len(rows) and (first.min() < 0 or rows[starts + counts - 1].min() < 0):
        raise CorruptError(f"{where}: a block has an impossible row id")
    with_counts = "counts" in entries.schema.names
    found = unpack_numbers(entries.column("counts"), counts, where) if with_counts else np.ones(len(rows), np.uint8)
    lengths = unpack_numbers(entries.column("lengths"), counts, where)
    if (found > lengths).any():
        raise CorruptError(f"{where}: a row has a word more often than it has words")
    return counts, Postings(rows, found, lengths)


def _decode_block(entries: pa.RecordBatch, count: int, where: str) -> Postings:
    """As `decode_blocks` for a word with one small block, as most words have, in fewer steps."""
    values: dict[str, Numbers] = {}
    for name in ("rows", "counts", "lengths"):
        data = entries.column(name)[0].as_buffer() if name in entries.schema.names else b""
        width, rest = divmod(len(data), count)
        if rest or width not in _WIDTHS:
            raise CorruptError(f"{where}: a block has a number of bytes that does not fit its count")
        values[name] = np.frombuffer(data, _DTYPES[width]) if width else np.ones(count, np.uint8)
        if not values[name].all() or (width == 8 and values[name].max() > _LARGEST):
            raise CorruptError(f"{where}: a block has an impossible number")
    rows = np.cumsum(values["rows"], dtype=np.int64)
    first = entries.column("first")[0].as_py()
    rows += first - rows[0]
    if first < 0 or rows[-1] < 0:
        raise CorruptError(f"{where}: a block has an impossible row id")
    if (values["counts"] > values["lengths"]).any():
        raise CorruptError(f"{where}: a row has a word more often than it has words")
    return Postings(rows, values["counts"], values["lengths"])


def block_counts(entries: pa.RecordBatch, where: str) -> Int64Array:
    """The number of values of each block; raises `CorruptError` for one that no block has."""
    if any(column.null_count for column in entries.columns):
        raise CorruptError(f"{where}: an entry has no value")
    counts = _numbers(entries, "count")
    if len(counts) and not (counts.min() >= 1 and counts.max() <= MAX_BLOCK):
        raise CorruptError(f"{where}: a block has {counts.min()} to {counts.max()} values, not 1 to {MAX_BLOCK}")
    return counts


def _numbers(entries: pa.RecordBatch, name: str) -> Int64Array:
    return np.asarray(entries.column(name)).astype(np.int64, copy=False)


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Entries of several pages as one batch."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def encode_positions(
    keys: pa.Array, groups: Int64Array, positions: Int64Array, is_first: npt.NDArray[np.bool_]
) -> pa.Table:
    """Positions of consecutive keys as blocks; `is_first` tells the first occurrence in each row."""
    steps = np.empty(len(positions), np.int64)
    steps[:1] = positions[:1]
    steps[1:] = positions[1:] - positions[:-1]
    steps[is_first] = positions[is_first] + 1
    return pack_positions(keys, groups, steps)


def pack_positions(keys: pa.Array, groups: Int64Array, steps: Numbers) -> pa.Table:
    """Steps of consecutive keys as blocks."""
    is_new = np.ones(len(steps), bool)
    is_new[1:] = groups[1:] != groups[:-1]
    bounds = block_bounds(is_new)
    counts = np.diff(bounds)
    return pa.table({
        "key": keys.take(pa.array(groups[bounds[:-1]])),
        "count": pa.array(counts.astype(np.int32)),
        "positions": pack_numbers(steps, counts),
    }).cast(POSITIONS)  # fmt: skip


def position_steps(entries: pa.RecordBatch, where: str) -> tuple[Int64Array, Numbers]:
    """The number of steps of each block, and all steps in order."""
    counts = block_counts(entries, where)
    return counts, unpack_numbers(entries.column("positions"), counts, where)


def with_positions(postings: Postings, steps: Numbers, where: str) -> Postings:
    """Postings of one word with their positions; raises `CorruptError` if the steps are not theirs."""
    if len(steps) != postings.counts.sum():
        raise CorruptError(f"{where}: the number of positions is not that of the postings")
    positions = np.cumsum(steps, dtype=np.int64) - 1
    starts = run_starts(postings.counts)[:-1]
    positions -= np.repeat(positions[starts] - steps[starts] + 1, postings.counts)
    if (positions >= np.repeat(postings.lengths, postings.counts)).any():
        raise CorruptError(f"{where}: a word is beyond the end of its row")
    return postings._replace(positions=positions)


def key_groups(keys: pa.Array) -> tuple[pa.Array, Int64Array]:
    """The distinct keys of sorted entries in order, and the index of each entry's key."""
    if not len(keys):
        return keys, _NONE
    is_new = np.ones(len(keys), bool)
    is_new[1:] = np.asarray(pc.not_equal(keys[1:], keys[:-1]))
    return keys.filter(pa.array(is_new)), np.cumsum(is_new) - 1
