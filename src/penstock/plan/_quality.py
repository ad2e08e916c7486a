"""Shuffle quality: the number of blocks that a batch draws from, against a uniform shuffle."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """The number of distinct blocks per batch."""

    blocks_per_batch: float
    expected: float
    """The expected number for a uniform shuffle of the whole table."""

    @property
    def ratio(self) -> float:
        """Blocks per batch, relative to a uniform shuffle."""
        return min(self.blocks_per_batch / self.expected, 1.0) if self.expected else 1.0

    def __str__(self) -> str:
        return f"a batch draws from {self.blocks_per_batch:.0f} blocks (a uniform shuffle: {self.expected:.0f})"


def expected_blocks(batch_size: int, blocks: float) -> float:
    """The expected number of distinct blocks in a batch of a uniform shuffle."""
    if blocks <= 1:
        return 1.0
    return blocks * (1.0 - (1.0 - 1.0 / blocks) ** batch_size)
