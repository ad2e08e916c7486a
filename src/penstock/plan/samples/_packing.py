"""Packing: fill sequences of a fixed number of tokens with the tokens of documents.

Documents are read by blocks, so a sequence may hold only documents that are near each other: "concat" keeps the order
of documents, and "fit" packs pools of consecutive documents on their own.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

_POOL_SEQUENCES = 128
"""Tokens of a pool, in sequences: the unfilled last sequence of a pool costs less than 0.5 % of the places."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Which tokens of which documents each sequence holds.

    A piece is a run of tokens of one document. The pieces of a sequence are in document order.
    """

    length: int
    """Places of a sequence."""
    offsets: Int64Array
    """The pieces of sequence i are `offsets[i]` to `offsets[i + 1]`."""
    documents: Int64Array
    """The document of each piece."""
    starts: Int64Array
    """The first token of each piece, counted within its document."""
    lengths: Int64Array
    """The number of tokens of each piece, at least 1."""

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1


def pack_concat(lengths: Int64Array, *, length: int) -> Packing:
    """Concatenate documents in order and cut every `length` tokens; only the last sequence may have free places."""
    document_ends = np.cumsum(lengths, dtype=np.int64)
    tokens = int(document_ends[-1]) if len(lengths) else 0
    # A piece ends where its document ends or its sequence is full; a document without tokens ends no piece.
    ends = np.union1d(document_ends[lengths > 0], np.arange(length, tokens, length))
    begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    documents = np.searchsorted(document_ends, begins, side="right")
    starts = begins - (document_ends - lengths)[documents]
    sequences = -(-tokens // length)
    offsets = np.searchsorted(begins, np.arange(sequences + 1) * length)
    return Packing(length, offsets, documents, starts, ends - begins)


def pack_fit(lengths: Int64Array, *, length: int) -> Packing:
    """Keep documents whole, and fill sequences with those that fit; longer documents are cut every `length` tokens.

    First fit decreasing within pools of consecutive documents, so the order of sequences follows that of documents.
    """
    counts = -(-lengths // length)
    documents = np.repeat(np.arange(len(lengths)), counts)
    firsts = np.cumsum(counts) - counts
    starts = (np.arange(len(documents)) - firsts[documents]) * length
    sizes = np.minimum(lengths[documents] - starts, length)
    bins = _fill_bins(sizes, length)
    # Bins are ordered by their first piece, which is in document order, and so by pool.
    first_pieces = np.full(int(bins.max(initial=-1)) + 1, len(bins), np.int64)
    np.minimum.at(first_pieces, bins, np.arange(len(bins)))
    order = np.argsort(first_pieces[bins], kind="stable")
    offsets = np.append(np.flatnonzero(np.diff(first_pieces[bins][order], prepend=-1)), len(bins))
    return Packing(length, offsets, documents[order], starts[order], sizes[order])


def _fill_bins(sizes: Int64Array, length: int) -> Int64Array:
    """The bin of each piece; bins of different pools are different."""
    pools = (np.cumsum(sizes) - 1) // (_POOL_SEQUENCES * length)
    keys = pools * (length + 1) + sizes
    order = np.argsort(keys, kind="stable")
    classes, class_counts = np.unique(keys, return_counts=True)
    class_pools, class_sizes = np.divmod(classes, length + 1)
    pool_ends = np.flatnonzero(np.diff(class_pools, append=-1)) + 1
    bin_of = np.empty(len(sizes), np.int64)
    bins = first = done = 0
    for end in pool_ends.tolist():
        runs = _fill_pool(class_sizes[first:end].tolist(), class_counts[first:end].tolist(), length)
        run_classes, run_counts, run_bins = np.array(runs, np.int64).T
        by_class = np.argsort(run_classes, kind="stable")
        count = int(run_counts.sum())
        bin_of[order[done : done + count]] = np.repeat(run_bins[by_class], run_counts[by_class]) + bins
        bins, first, done = bins + runs[-1][2] + 1, end, done + count
    return bin_of


def _fill_pool(sizes: list[int], counts: list[int], length: int) -> list[tuple[int, int, int]]:
    """First fit decreasing, one bin at a time: the largest pieces that fit, until none does.

    `sizes` are distinct and ascend, `counts` are pieces of each. Returns (index of the size, pieces, bin) in bin order.
    """
    runs = []
    indices = list(range(len(sizes)))
    bin = 0
    while sizes:
        free, at = length, len(sizes) - 1
        while at >= 0:
            placed = min(counts[at], free // sizes[at])
            runs.append((indices[at], placed, bin))
            free -= placed * sizes[at]
            counts[at] -= placed
            if not counts[at]:
                del sizes[at], counts[at], indices[at]
            at = bisect_right(sizes, free, hi=min(at, len(sizes))) - 1
        bin += 1
    return runs
