"""Shuffle settings; defaults depend on the table alone, so every machine derives the same order."""

from dataclasses import dataclass
from numbers import Integral, Real

from penstock.errors import InvalidInputError
from penstock.types import parse_size

_HUGE_BYTES = 1 << 40
_SMALL_LANES, _MANY_LANES, _HUGE_LANES = 24, 96, 384
_BLOCKS, _MOST_BLOCKS, _FEW_ROWS = 1536, 1920, 1024
_BLOCKS_PER_LANE = 80
_MIN_BLOCK_BYTES, _MIN_SHARING_BLOCK_BYTES = 256 << 10, 4 << 20
_MAX_BLOCK_BYTES, _MAX_WIDE_BLOCK_BYTES = 4 << 20, 8 << 20
"""Largest block of the heaviest column, and of all columns together."""
_WINDOW_SHARE = 6
_MIN_WINDOW_BYTES, _MAX_WINDOW_BYTES = 640 << 20, 1 << 30
"""Of all columns. The smallest window fits the default budget of a gigabyte, with room to read ahead."""
_MIXTURE_SHARE = 4
"""Fraction (1/n) of a window for a table of a mixture."""
_MAX_WINDOW_ROWS = 1 << 24
"""Bounds the memory of the plan, which is some tens of bytes for each row of the window."""
_MIN_SPREAD = 1.0
_MIN_CHOSEN_WINDOW_BYTES = 1 << 20


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
    window: int | str | None = None
    """About how many bytes rows are drawn from at a time, over all columns and ranks; text such as "256MB", or a number
    from a mebibyte on. It stands for `block_bytes` and `spread`, which are chosen for it."""

    def __post_init__(self) -> None:
        for name in ("seed", "block_bytes", "lanes"):
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise InvalidInputError(f"Shuffle({name}=…) must be a whole number, not {value!r}")
            object.__setattr__(self, name, int(value))  # numpy integers are not JSON serialisable
        _check_bounds(self.lanes, self.block_bytes, self.spread)
        if self.window is None:
            return
        size = parse_size("Shuffle(window=…)", self.window)
        if size is None or size < _MIN_CHOSEN_WINDOW_BYTES:
            raise InvalidInputError(f"Shuffle(window=…) must be at least a mebibyte, not {self.window!r}")
        if self.block_bytes is not None or self.spread is not None:
            raise InvalidInputError("Shuffle(window=…) chooses block_bytes and spread: give either it or them")
        object.__setattr__(self, "window", size)

    @property
    def derived(self) -> bool:
        """Whether all settings but the seed are left to the table."""
        return self == Shuffle(self.seed)


@dataclass(frozen=True, slots=True)
class ShuffleLayout:
    """Resolved shuffle settings; part of a loader's state."""

    lanes: int
    block_bytes: int
    spread: float

    def __post_init__(self) -> None:
        _check_bounds(self.lanes, self.block_bytes, self.spread)


def resolve_shuffle(
    shuffle: Shuffle,
    table_bytes: int,
    row_bytes: float,
    *,
    width: float,
    shares_rows: bool = False,
    in_mixture: bool = False,
) -> ShuffleLayout:
    """Derive the settings that `shuffle` leaves open from the size of the table and of a row alone.

    `table_bytes` and `row_bytes` are those of the heaviest column, and `width` is the size of a row of all columns
    relative to it. A table that fits the smallest window is shuffled as a whole. In larger ones, blocks are small if
    the table or its rows are small, because a block of many rows fills a batch with neighbours; the number of lanes
    grows with the table; and the spread uses a window of a sixth of the table, up to a gigabyte. Blocks that share rows
    with their neighbours are large (`shares_rows`). In a mixture, windows are a quarter of that and blocks are fewer,
    because batches draw from several tables. In a chosen window, blocks are smaller and lanes fewer, as far as two
    blocks of each lane would not fit.
    """
    share = _MIXTURE_SHARE if in_mixture else 1
    smallest, largest_window = _MIN_WINDOW_BYTES // share, _MAX_WINDOW_BYTES // share
    block, lanes, spread = shuffle.block_bytes, shuffle.lanes, shuffle.spread
    chosen = parse_size("Shuffle(window=…)", shuffle.window)
    if block is None:
        part = min(share * table_bytes // _BLOCKS, round(_FEW_ROWS * row_bytes))
        part = max(part, share * table_bytes // _MOST_BLOCKS)
        largest = min(_MAX_BLOCK_BYTES, int(_MAX_WIDE_BLOCK_BYTES / width))
        if chosen is not None:
            largest = min(largest, int(chosen / (2 * width * (lanes or _SMALL_LANES))))
        block = max(min(part, largest), _MIN_SHARING_BLOCK_BYTES if shares_rows else _MIN_BLOCK_BYTES)
    if lanes is None:
        lanes = _default_lanes(table_bytes, block, width, chosen)
    if spread is None:
        row_of_blocks = max(block * width * lanes, 1)
        total_bytes, most_bytes = table_bytes * width, _MAX_WINDOW_ROWS * row_bytes * width
        if total_bytes <= (min(smallest, most_bytes) if chosen is None else chosen):
            spread = float(-(-table_bytes // max(block * lanes, 1)) + 1)
        elif chosen is not None:
            spread = max(0.0, round(chosen / row_of_blocks - 1, 2))
        else:
            window = min(max(total_bytes / _WINDOW_SHARE, smallest), largest_window, most_bytes)
            spread = max(_MIN_SPREAD, round(window / row_of_blocks - 1, 2))
        spread = min(spread, 1000.0)
    return ShuffleLayout(lanes, block, spread)


def _default_lanes(table_bytes: int, block: int, width: float, window: int | None) -> int:
    blocks = table_bytes // max(block, 1)
    if table_bytes >= _HUGE_BYTES:
        wanted = _HUGE_LANES
    else:
        wanted = _MANY_LANES if blocks >= _MANY_LANES * _BLOCKS_PER_LANE else _SMALL_LANES

    def suits(count: int) -> bool:
        """Whether lanes are long enough, because a lane of few blocks holds only neighbours, and blocks fit memory."""
        fits = 2 * count * block * width <= (window or _MAX_WINDOW_BYTES)
        fits = fits or (window is None and block * width <= _MAX_WIDE_BLOCK_BYTES)
        return count == 1 or (8 * count <= blocks and fits)

    return max(count for count in (1, 2, 4, 8, _SMALL_LANES, wanted) if suits(count))


def _check_bounds(lanes: int | None, block_bytes: int | None, spread: float | None) -> None:
    if lanes is not None and lanes < 1:
        raise InvalidInputError(f"Shuffle(lanes=…) must be at least 1, not {lanes}")
    if block_bytes is not None and block_bytes < 1:
        raise InvalidInputError(f"Shuffle(block_bytes=…) must be a positive number of bytes, not {block_bytes}")
    if spread is not None and not (isinstance(spread, Real) and 0 <= spread <= 1000):
        raise InvalidInputError(f"Shuffle(spread=…) must be a number of blocks from 0 to 1000, not {spread!r}")


SEQUENTIAL = ShuffleLayout(lanes=1, block_bytes=_MAX_BLOCK_BYTES, spread=0.0)
"""No shuffle: rows in table order."""
