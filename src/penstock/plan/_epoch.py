"""The order of one epoch: positions to places, by arithmetic alone.

Sections (manifests) are permuted, and so are the parts of each, and the blocks in those; behind each other they are one
line of *places*. The line is cut by rows into lanes. A lane's rows are read in the order of its spread, and the epoch
takes a row from each lane in turn: that turn is the *position*, the only thing that ranks, steps and checkpoints count.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan._mix import derive, permutation
from penstock.plan._spread import Spread
from penstock.types import cached_property

Rows = npt.NDArray[np.int64]

_SECTIONS, _PARTS, _BLOCKS, _LANES = range(4)


@dataclass(frozen=True)
class Epoch:
    """The order of the rows of some sections."""

    section_rows: Rows
    """How many rows each section has."""
    lanes: int
    reach: int
    """The spread, in rows."""
    seed: int
    number: int
    shuffled: bool

    @cached_property
    def rows(self) -> int:
        return int(self.section_rows.sum())

    @cached_property
    def sections(self) -> Rows:
        """The sections in the order of their places."""
        count = len(self.section_rows)
        return permutation(count, self._key(_SECTIONS)) if self.shuffled else np.arange(count)

    @cached_property
    def section_ends(self) -> Rows:
        """The place behind each section, in the order of `sections`."""
        return np.cumsum(self.section_rows[self.sections])

    def part_order(self, section: int, parts: int) -> Rows:
        """The parts of a section in the order of their places."""
        return permutation(parts, self._key(_PARTS, section)) if self.shuffled else np.arange(parts)

    def block_order(self, section: int, part: int, blocks: int) -> Rows:
        """The blocks of a part of a section in the order of their places."""
        return permutation(blocks, self._key(_BLOCKS, section, part)) if self.shuffled else np.arange(blocks)

    def lane_start(self, lane: int) -> int:
        """The first place of a lane; the first lanes are a row longer where rows are left over."""
        return lane * (self.rows // self.lanes) + min(lane, self.rows % self.lanes)

    def lane_order(self, lane: int) -> Spread:
        """How a lane's rows are read."""
        length = self.lane_start(lane + 1) - self.lane_start(lane)
        return Spread(length, self.reach, self._key(_LANES, lane))

    def _key(self, *words: int) -> int:
        return derive(self.seed, self.number, *words)
