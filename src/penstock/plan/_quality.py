"""How good a shuffle is: from how many blocks a batch draws, beside a perfect shuffle's number."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quality:
    """Blocks that a batch draws from."""

    blocks_per_batch: float
    perfect: float
    """What a true shuffle of the whole table would give."""

    @property
    def share(self) -> float:
        return min(self.blocks_per_batch / self.perfect, 1.0) if self.perfect else 1.0

    def __str__(self) -> str:
        return f"a batch draws from {self.blocks_per_batch:.0f} blocks (a true shuffle: {self.perfect:.0f})"


def perfect_blocks(batch_size: int, blocks: float) -> float:
    """Blocks that a batch of a true shuffle draws from, on average."""
    if blocks <= 1:
        return 1.0
    return blocks * (1.0 - (1.0 - 1.0 / blocks) ** batch_size)
