"""How an epoch is shuffled; the defaults follow from the table alone, so that every machine finds the same order."""

from dataclasses import dataclass

from penstock.errors import InvalidInputError

_SMALL_BYTES = 32 << 20
_HUGE_BYTES = 1 << 40
_SMALL_LANES, _MANY_LANES, _HUGE_LANES = 24, 96, 384
_BLOCKS, _MOST_BLOCKS, _FEW_ROWS = 1024, 1920, 1024
_BLOCKS_PER_LANE = 80
_MIN_BLOCK_BYTES = 256 << 10
_MAX_BLOCK_BYTES = 4 << 20
_WINDOW_SHARE = 13
_MIN_WINDOW_BYTES, _MAX_WINDOW_BYTES = 24 << 20, 1 << 30
_MIN_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class Shuffle:
    """What decides an epoch's order, beside its seed and number; all of it is part of a loader's state."""

    lanes: int
    """Places of the table that are read side by side; a multiple of the number of ranks reads each byte once."""
    block_bytes: int
    """About how many bytes of the heaviest column are read together."""
    spread: float
    """How far a row may move in its lane, in blocks; memory and quality grow with it."""

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidInputError(f"lanes must be at least 1, not {self.lanes}")
        if self.block_bytes < 1:
            raise InvalidInputError(f"shuffle_block must be a positive number of bytes, not {self.block_bytes}")
        if not 0 <= self.spread <= 1000:
            raise InvalidInputError(f"shuffle_spread must be a number of blocks from 0 to 1000, not {self.spread}")


def choose_shuffle(
    table_bytes: int,
    row_bytes: float,
    *,
    lanes: int | None = None,
    block_bytes: int | None = None,
    spread: float | None = None,
) -> Shuffle:
    """Fill in what was not asked for, from the size of the table and of a row alone.

    A small table is shuffled as a whole. Else blocks are small where the table is small, and where rows are, because
    a block of many rows fills a batch with neighbours; lanes are many where the table is large; and the spread is
    what a thirteenth of the table or a gigabyte has room for.
    """
    share = max(min(table_bytes // _BLOCKS, round(_FEW_ROWS * row_bytes)), table_bytes // _MOST_BLOCKS)
    block = min(max(share, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES) if block_bytes is None else block_bytes
    if lanes is None:
        lanes = _HUGE_LANES if table_bytes >= _HUGE_BYTES else _SMALL_LANES
        if table_bytes < _HUGE_BYTES and table_bytes // max(block, 1) >= _MANY_LANES * _BLOCKS_PER_LANE:
            lanes = _MANY_LANES
        blocks = table_bytes // max(block, 1)  # a lane of less than a few blocks would hold only neighbours
        lanes = max(count for count in (1, 2, 4, 8, lanes) if count == 1 or 8 * count <= blocks)
    if spread is None:
        row_of_blocks = max(block * lanes, 1)
        if table_bytes <= _SMALL_BYTES:
            spread = float(-(-table_bytes // row_of_blocks) + 1)
        else:
            window = min(max(table_bytes // _WINDOW_SHARE, _MIN_WINDOW_BYTES), _MAX_WINDOW_BYTES)
            spread = max(_MIN_SPREAD, round(window / row_of_blocks - 1, 2))
        spread = min(spread, 1000.0)
    return Shuffle(lanes, block, spread)


IN_ORDER = Shuffle(lanes=1, block_bytes=_MAX_BLOCK_BYTES, spread=0.0)
"""No shuffle: the rows as they are."""
