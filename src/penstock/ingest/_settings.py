"""What a user may ask of an ingest."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from penstock.codecs import IMAGE_CODECS, Compression
from penstock.errors import InvalidInputError

OnBad = Literal["skip", "raise"]
Transform = Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass(frozen=True)
class Settings:
    """How rows are changed on their way; kept with the table, so that a later sync does the same."""

    columns: tuple[str, ...] | None = None
    """Only these columns, in this order; all by default."""
    codecs: Mapping[str, str] = field(default_factory=dict)
    """Column to codec: an image format with a quality (`jpeg:90`), or a compression of any column (`zstd`)."""
    decode: bool = False
    """Whether pictures are stored as tensors, ready to be read, instead of as they came."""
    resize: tuple[int, int] | None = None
    """Height and width that every picture gets."""
    nullable: tuple[str, ...] = ()
    """Columns that later rows may lack, though the first ones have them."""
    transform: str | None = None
    """`module:function`, called with each row as a dictionary; it returns the row to store, or None for none."""
    shuffle: int | None = None
    """A seed: files are taken in random order, and the rows of each few thousand mixed."""
    link: bool = False
    """Whether values stay where they are, and the table points at them."""

    def __post_init__(self) -> None:
        if self.link and (self.decode or self.resize is not None):
            raise InvalidInputError("a linked picture stays as it is: leave out decode and resize, or link")
        if self.resize is not None and (len(self.resize) != 2 or min(self.resize) < 1):
            raise InvalidInputError(f"resize is a height and a width, such as 256x256, not {self.resize}")
        for column, codec in self.codecs.items():
            if codec.partition(":")[0] not in IMAGE_CODECS:
                Compression.parse(codec)
            elif self.link:
                raise InvalidInputError(f"column {column!r} is linked and stays as it is: leave out its codec, or link")

    @property
    def works_on_rows(self) -> bool:
        """Whether rows take work before they are stored."""
        return self.decode or self.resize is not None or self.transform is not None or bool(self.codecs)

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults."""
        usual = asdict(Settings())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Settings":
        known = {member.name for member in fields(cls)}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        return cls(**{name: value for name, value in given.items() if name in known})


def find_transform(name: str) -> Transform:
    """The function that `module:function` names; modules are found as Python finds them, and in the present folder."""
    module, separator, function = name.partition(":")
    if not separator or not function:
        raise InvalidInputError(f"a transform is written module:function, not {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"transform {name!r} cannot be found: {error}") from error
    if not callable(found):
        raise InvalidInputError(f"transform {name!r} is no function")
    return found  # type: ignore[no-any-return]
