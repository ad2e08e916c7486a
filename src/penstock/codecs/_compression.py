"""Arrow buffer compression of a column."""

from dataclasses import dataclass
from typing import Final, Self

from penstock.codecs._spec import check_level, join_spec, split_spec

_LEVELS: Final = {"none": None, "lz4": range(1, 13), "zstd": range(1, 23)}


@dataclass(frozen=True, slots=True)
class Compression:
    """A buffer compression codec; pyarrow compresses and decompresses."""

    name: str
    """`none`, `lz4` (Arrow's lz4 frame) or `zstd`."""
    level: int | None = None
    """1 to 12 for lz4, 1 to 22 for zstd; None for Arrow's default."""

    def __post_init__(self) -> None:
        check_level(self.name, self.level, _LEVELS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `none`, `lz4`, `zstd` or, with a level, `zstd:3`; raises `InvalidInputError`."""
        return cls(*split_spec(text))

    @property
    def spec(self) -> str:
        """The text that `parse` accepts."""
        return join_spec(self.name, self.level)
