"""Which positions each rank reads in each step: every step takes the next run of positions, whatever the ranks are."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from penstock.types import World

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dealer:
    """Deals an epoch's positions out to the ranks.

    Where the ranks divide the lanes, a rank owns lanes and no byte is read twice. Elsewhere a step's positions are
    dealt out in the order of their lanes, so that neighbouring ranks share a lane and others do not meet.
    """

    rows: int
    lanes: int
    world: World
    batch_size: int
    drop_last: bool

    @property
    def step_rows(self) -> int:
        """Positions that all ranks together read in a step."""
        return self.world.num_ranks * self.batch_size

    @property
    def owns_lanes(self) -> bool:
        """Whether each lane is read by one rank."""
        return self.lanes % self.world.num_ranks == 0

    @property
    def rank_lanes(self) -> int:
        """How many lanes a rank reads at a time, at most."""
        if self.owns_lanes:
            return self.lanes // self.world.num_ranks
        return _lanes_read(self.lanes, self.world.num_ranks, self.batch_size)[0]

    @property
    def read_factor(self) -> float:
        """How many times a byte is read over all ranks, about."""
        if self.owns_lanes:
            return 1.0
        return _lanes_read(self.lanes, self.world.num_ranks, self.batch_size)[1] / self.lanes

    def steps(self, start: int = 0) -> int:
        """Steps from a position to the end of the epoch, the same for every rank."""
        left = max(self.rows - start, 0)
        return left // self.step_rows if self.drop_last else -(-left // self.step_rows)

    def full_steps(self, start: int) -> int:
        """Steps from a position on that no padding is needed for."""
        return max(self.rows - start, 0) // self.step_rows

    def positions(self, start: int, steps: int) -> Rows:
        """This rank's positions in some full steps, a row of them for each."""
        rank, ranks = self.world.rank, self.world.num_ranks
        if self.owns_lanes:
            first = start + (rank - start) % ranks
            return np.arange(first, first + steps * self.step_rows, ranks).reshape(steps, self.batch_size)
        return np.stack([self._share(start + step * self.step_rows) for step in range(steps)])

    def last(self, start: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """This rank's positions in the short step at the end of an epoch, and which of them only fill it up.

        One rank gets a short batch. Of several, each fills its own with its own rows again, or with another's where
        it has none.
        """
        if self.world.num_ranks == 1:
            found = np.arange(start, self.rows)
            return found, np.zeros(len(found), bool)
        mine = self.positions(start, 1)[0]
        padding = mine >= self.rows
        real = mine[~padding] if not padding.all() else np.arange(start, self.rows)
        mine[padding] = np.resize(real, int(padding.sum()))
        return mine, padding

    def _share(self, start: int) -> Rows:
        """A rank's part of a step whose positions are put in the order of their lanes."""
        firsts = start + (np.arange(self.lanes) - start) % self.lanes
        counts = np.maximum(-(-(start + self.step_rows - firsts) // self.lanes), 0)
        ends = np.cumsum(counts)
        places = np.arange(self.batch_size) + self.world.rank * self.batch_size
        lanes = np.searchsorted(ends, places, side="right")
        return np.asarray(firsts[lanes] + (places - (ends - counts)[lanes]) * self.lanes, np.int64)


@lru_cache(maxsize=64)
def _lanes_read(lanes: int, num_ranks: int, batch_size: int) -> tuple[int, int]:
    """Lanes that a rank comes to, at most, and those that all ranks come to, added up.

    A lane's part of a step moves up and down by a row, as steps begin in one lane or another, and what is dealt out
    behind it moves along: with few rows of a lane in a step, or none in some, a rank comes to many lanes.
    """
    step_rows = num_ranks * batch_size
    changes = np.zeros((num_ranks + 1, lanes), np.int32)
    for start in range(0, lanes, gcd(step_rows, lanes)):
        counts = np.maximum(-(-(step_rows - (np.arange(lanes) - start) % lanes) // lanes), 0)
        ends = np.cumsum(counts)
        there = np.flatnonzero(counts)
        changes[(ends - counts)[there] // batch_size, there] += 1
        changes[(ends[there] - 1) // batch_size + 1, there] -= 1
    read = np.cumsum(changes[:-1], axis=0) > 0
    return int(read.sum(axis=1).max()), int(read.sum())
