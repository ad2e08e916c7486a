"""Shuffle settings; defaults depend on the table alone, so every machine derives the same order."""

from dataclasses import dataclass
from numbers import Integral, Real

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
    """How a loader shuffles: the seed, and settings that default to values derived from the size of the table.

    The order of an epoch depends on these settings, the snapshot, the selected rows and columns, and the epoch number;
    not on ranks, workers, memory or hardware. Raises `InvalidInputError` for values out of range.
    """

    seed: int = 0
    """Seed of the order and of random transforms."""
    block_bytes: int | None = None
    """Approximate bytes of the heaviest column that are read together."""
    spread: float | None = None
    """How far a row can move within its lane, in blocks; shuffle quality and memory use grow with it."""
    lanes: int | None = None
    """Number of interleaved read cursors; if it is a multiple of the number of ranks, each byte is fetched once."""

    def __post_init__(self) -> None:
        for name in ("seed", "block_bytes", "lanes"):
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise InvalidInputError(f"Shuffle({name}=…) must be a whole number, not {value!r}")
            object.__setattr__(self, name, int(value))  # numpy integers are not JSON serialisable
        _check_bounds(self.lanes, self.block_bytes, self.spread)


@dataclass(frozen=True, slots=True)
class ShuffleLayout:
    """Resolved shuffle settings; part of a loader's state."""

    lanes: int
    block_bytes: int
    spread: float

    def __post_init__(self) -> None:
        _check_bounds(self.lanes, self.block_bytes, self.spread)


def resolve_shuffle(shuffle: Shuffle, table_bytes: int, row_bytes: float) -> ShuffleLayout:
    """Derive the settings that `shuffle` leaves open from the size of the table and of a row alone.

    A small table is shuffled as a whole. In larger ones, blocks are small if the table or its rows are small, because
    a block of many rows fills a batch with neighbours; the number of lanes grows with the table; and the spread uses a
    window of a thirteenth of the table, up to a gigabyte.
    """
    lanes, block_bytes, spread = shuffle.lanes, shuffle.block_bytes, shuffle.spread
    share = max(min(table_bytes // _BLOCKS, round(_FEW_ROWS * row_bytes)), table_bytes // _MOST_BLOCKS)
    block = min(max(share, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES) if block_bytes is None else block_bytes
    if lanes is None:
        lanes = _HUGE_LANES if table_bytes >= _HUGE_BYTES else _SMALL_LANES
        if table_bytes < _HUGE_BYTES and table_bytes // max(block, 1) >= _MANY_LANES * _BLOCKS_PER_LANE:
            lanes = _MANY_LANES
        blocks = table_bytes // max(block, 1)  # a lane of few blocks would hold only neighbours
        lanes = max(count for count in (1, 2, 4, 8, lanes) if count == 1 or 8 * count <= blocks)
    if spread is None:
        row_of_blocks = max(block * lanes, 1)
        if table_bytes <= _SMALL_BYTES:
            spread = float(-(-table_bytes // row_of_blocks) + 1)
        else:
            window = min(max(table_bytes // _WINDOW_SHARE, _MIN_WINDOW_BYTES), _MAX_WINDOW_BYTES)
            spread = max(_MIN_SPREAD, round(window / row_of_blocks - 1, 2))
        spread = min(spread, 1000.0)
    return ShuffleLayout(lanes, block, spread)


def _check_bounds(lanes: int | None, block_bytes: int | None, spread: float | None) -> None:
    if lanes is not None and lanes < 1:
        raise InvalidInputError(f"Shuffle(lanes=…) must be at least 1, not {lanes}")
    if block_bytes is not None and block_bytes < 1:
        raise InvalidInputError(f"Shuffle(block_bytes=…) must be a positive number of bytes, not {block_bytes}")
    if spread is not None and not (isinstance(spread, Real) and 0 <= spread <= 1000):
        raise InvalidInputError(f"Shuffle(spread=…) must be a number of blocks from 0 to 1000, not {spread!r}")


SEQUENTIAL = ShuffleLayout(lanes=1, block_bytes=_MAX_BLOCK_BYTES, spread=0.0)
"""No shuffle: rows in table order."""
