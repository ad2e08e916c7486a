"""The names of managed tables: `penstock://workspace/table`."""

import re
from dataclasses import dataclass

from penstock.errors import InvalidInputError

_SCHEME = "penstock://"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_GRAMMAR = (
    "a workspace and a table each have 1 to 63 of a-z, 0-9, '.', '_' and '-', "
    "begin with a letter or a digit, and have no '..' and no '.' at the end"
)


@dataclass(frozen=True, order=True)
class Address:
    """The name of a table in a workspace.

    Both parts become names of folders and prefixes of keys on every file system and cloud, so what some of them would
    fold together or drop (capitals, a dot at the end) is refused on all of them.
    """

    workspace: str
    table: str

    def __post_init__(self) -> None:
        names = (self.workspace, self.table)
        if all(map(_is_name, names)):
            return
        lower = [name.lower() for name in names]
        if all(map(_is_name, lower)):
            raise InvalidInputError(f"{self}: names are in lower case; write {_SCHEME}{'/'.join(lower)}")
        raise InvalidInputError(f"{str(self)!r} cannot name a table: {_GRAMMAR}; write {_SCHEME}workspace/table")

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read what `str` of an address writes."""
        workspace, _, table = text.removeprefix(_SCHEME).partition("/")
        if not is_address(text) or not workspace or not table or "/" in table:
            raise InvalidInputError(f"{text!r} does not name one table of a workspace; write {_SCHEME}workspace/table")
        return cls(workspace, table)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.workspace}/{self.table}"


def is_address(text: str) -> bool:
    """Whether a text is meant for the catalog; `Address.parse` says whether it is well formed."""
    return text.startswith(_SCHEME)


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and not text.endswith(".")
