"""Addresses of managed tables: `penstock://workspace/table`."""

import re
from dataclasses import dataclass

from penstock.errors import InvalidInputError

_SCHEME = "penstock://"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_GRAMMAR = (
    "a workspace and a table each have 1 to 63 of a-z, 0-9, '.', '_' and '-', "
    "begin with a letter or a digit, and contain no '..' and no trailing '.'"
)


@dataclass(frozen=True, order=True)
class TableAddress:
    """The name of a table in a workspace.

    Both parts become folder names and key prefixes, so names that some file system or cloud changes (upper case, a
    trailing dot) raise `InvalidInputError` everywhere.
    """

    workspace: str
    table: str

    def __post_init__(self) -> None:
        names = (self.workspace, self.table)
        if all(map(_is_name, names)):
            return
        lower = [name.lower() for name in names]
        if all(map(_is_name, lower)):
            raise InvalidInputError(f"{self}: names must be lower case; write {_SCHEME}{'/'.join(lower)}")
        raise InvalidInputError(f"{str(self)!r} cannot name a table: {_GRAMMAR}; write {_SCHEME}workspace/table")

    @classmethod
    def parse(cls, text: str) -> "TableAddress":
        """Parse `penstock://workspace/table`; raises `InvalidInputError`."""
        workspace, _, table = text.removeprefix(_SCHEME).partition("/")
        if not is_table_address(text) or not workspace or not table or "/" in table:
            raise InvalidInputError(f"{text!r} does not name one table of a workspace; write {_SCHEME}workspace/table")
        return cls(workspace, table)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.workspace}/{self.table}"


def is_table_address(text: str) -> bool:
    """Whether a URI has the `penstock` scheme; `TableAddress.parse` validates the rest."""
    return text.startswith(_SCHEME)


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and not text.endswith(".")
