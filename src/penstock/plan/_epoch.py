"""The order of one epoch, computed without stored state.

Sections (manifests), the parts of each section and the blocks of each part are permuted. Concatenated, they form one
sequence; the index of a row in it is its *slot*. The sequence is split into lanes of consecutive slots. Each lane reads
its rows in the order of its bounded spread, and the epoch takes one row from each lane in turn. The index of a row in
the resulting order is its *position*, the only unit of ranks, steps and checkpoints.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan._random import derive_key, permutation
from penstock.plan._spread import BoundedSpread
from penstock.types import cached_property

Int64Array = npt.NDArray[np.int64]

_SECTIONS, _PARTS, _BLOCKS, _LANES = range(4)


@dataclass(frozen=True)
class Epoch:
    """The order of the rows of one epoch."""

    section_rows: Int64Array
    """The number of rows of each section."""
    lanes: int
    spread_rows: int
    """The bound of the spread, in rows."""
    seed: int
    index: int
    """The epoch, counted from 0."""
    shuffled: bool
    run_rows: int = 1
    """Rows that stay near each other, within `jitter_rows`; see `BoundedSpread`."""
    jitter_rows: int = 0

    @cached_property
    def rows(self) -> int:
        return int(self.section_rows.sum())

    @cached_property
    def sections(self) -> Int64Array:
        """The sections in slot order."""
        count = len(self.section_rows)
        return permutation(count, self._key(_SECTIONS)) if self.shuffled else np.arange(count)

    @cached_property
    def section_ends(self) -> Int64Array:
        """The end slot of each section, in the order of `sections`."""
        return np.cumsum(self.section_rows[self.sections])

    def part_order(self, section: int, parts: int) -> Int64Array:
        """The parts of a section in slot order."""
        return permutation(parts, self._key(_PARTS, section)) if self.shuffled else np.arange(parts)

    def block_order(self, section: int, part: int, blocks: int) -> Int64Array:
        """The blocks of a part in slot order."""
        return permutation(blocks, self._key(_BLOCKS, section, part)) if self.shuffled else np.arange(blocks)

    def lane_start(self, lane: int) -> int:
        """The first slot of a lane; the first `rows % lanes` lanes are one row longer."""
        return lane * (self.rows // self.lanes) + min(lane, self.rows % self.lanes)

    def lane_order(self, lane: int) -> BoundedSpread:
        """The read order of a lane's rows."""
        length = self.lane_start(lane + 1) - self.lane_start(lane)
        return BoundedSpread(length, self.spread_rows, self._key(_LANES, lane), self.run_rows, self.jitter_rows)

    def _key(self, *words: int) -> int:
        return derive_key(self.seed, self.index, *words)
