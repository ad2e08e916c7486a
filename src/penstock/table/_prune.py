"""Rows that may match a filter: fragments, then pages, are left out by their statistics."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from penstock.table._pages import FragmentRows, Int64Array
from penstock.table._read import Reader


@dataclass
class PruneCounts:
    """What a filter had to consider, and what was left after pruning."""

    fragments: int = 0
    fragments_kept: int = 0
    pages: int = 0
    """Pages of the filter's columns in the kept fragments and the pruned ones."""
    pages_kept: int = 0


@dataclass(frozen=True)
class CandidateRows:
    """Live rows of one fragment that may match, and their positions in the table."""

    selected: FragmentRows
    positions: Int64Array


def candidate_rows(
    reader: Reader, filter: pc.Expression | None, positions: range | Int64Array, counts: PruneCounts
) -> Iterator[CandidateRows]:
    """The rows at ascending `positions` that may match a filter, by fragment in row order; every match is among them.

    A filter refers to columns by the names and Arrow types of `Reader.arrow`.
    """
    if isinstance(positions, range):
        positions = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    for fragment, start, inside in reader.tree.fragments_at(reader.snapshot.nodes, positions):
        counts.fragments += 1
        counts.fragments_kept += 1
        rows = inside - start if fragment.deleted is None else fragment.live_rows[inside - start]
        yield CandidateRows(FragmentRows(fragment, rows), inside)
