"""Which texts are locations of tables: a strict grammar, because locations become parts of policies."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.catalog._locations import checked_uri
from penstock.errors import InvalidInputError

Kind = Literal["s3", "gs", "az", "container", "folder", "memory"]
"""A scheme, or "container": each table is a container of its own, whose name begins with that of the storage."""

_ID = re.compile(r"[0-9a-f]{32}")
_PATH = r"(?:/(?!\.)[A-Za-z0-9._=-]+)*"
# None of these characters has a meaning in a policy, a condition or a URL.
_GRAMMARS: dict[Kind, re.Pattern[str]] = {
    "s3": re.compile(rf"s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]{_PATH}"),
    "gs": re.compile(rf"gs://[a-z0-9][a-z0-9._-]{{1,220}}[a-z0-9]{_PATH}"),
    "az": re.compile(rf"az://(?=[a-z0-9-]{{3,63}}(?:/|\Z))[a-z0-9]+(?:-[a-z0-9]+)*{_PATH}"),
    "container": re.compile(r"az://(?=[a-z0-9-]{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*"),
    "folder": re.compile(r"(?:file://)?(?:/(?!\.{1,2}(?:/|\Z))[^/%\x00-\x1f\x7f]+)+"),
    "memory": re.compile(rf"memory://[A-Za-z0-9_-]+{_PATH}"),
}
_MAX_LENGTH = 400
"""A session policy of S3 names a location three times and may have 2,048 characters."""
_MAX_CONTAINER_PREFIX = len("az://") + 30
_RULE = (
    "after the bucket, names have letters, digits, '.', '_', '=' and '-', do not begin with '.', and are joined by "
    f"single slashes, up to {_MAX_LENGTH} characters in all"
)


class Prefix(NamedTuple):
    """A bucket, and the prefix of a table's keys in it: empty, or with a slash at its end."""

    bucket: str
    path: str


@dataclass(frozen=True)
class Locations:
    """The locations of a server: ids below its storage, and all that is within the allowed ones."""

    storage: str
    allowed: tuple[str, ...]
    kind: Kind

    def new(self) -> str:
        """A location that no table has."""
        return _children(self.storage, self.kind) + secrets.token_hex(16)

    def check(self, location: str) -> None:
        """Raise `InvalidInputError` for a location that is none of this server."""
        if not self._is_child(location, self.storage):
            self.check_registrable(location)

    def check_registrable(self, location: str) -> None:
        """Raise `InvalidInputError` for a location outside of the allowed ones, or where the server's tables are."""
        if not _is_valid(location, self.kind):
            raise InvalidInputError(f"{location[:_MAX_LENGTH]!r} is not a location of this server; {_RULE}")
        is_container = self.kind == "container" and self._is_child(location, self.storage)
        if is_container or _is_within(location, self.storage) or _is_within(self.storage, location):
            raise InvalidInputError(
                f"{location} overlaps with {self.storage}, where this server keeps the tables that it creates; "
                "choose a location outside"
            )
        if not any(_is_within(location, parent) for parent in self.allowed):
            raise InvalidInputError(
                f"{location} is not a location of this server; to register tables there, start it with --location"
            )

    def check_removable(self, location: str) -> None:
        """Raise `InvalidInputError` for a location that no server chose."""
        if not any(self._is_child(location, parent) for parent in (self.storage, *self.allowed)):
            raise InvalidInputError(
                f"{location[:_MAX_LENGTH]!r} was not chosen by this server, which deletes only tables that it created"
            )

    def _is_child(self, location: str, parent: str) -> bool:
        start = _children(parent, self.kind)
        return location.startswith(start) and _ID.fullmatch(location, len(start)) is not None


def make_locations(storage: str, allowed: Sequence[str], kind: Kind) -> Locations:
    """The locations below a storage and within others; raises `InvalidInputError` for one that is not of that kind."""
    normal = [text.rstrip("/") if kind == "memory" else checked_uri(text) for text in (storage, *allowed)]
    for text in normal:
        if not _is_valid(text, kind):
            raise InvalidInputError(f"{text!r} cannot hold the tables of this server: {_explain(kind)}")
    if kind == "container" and len(normal[0]) > _MAX_CONTAINER_PREFIX:
        raise InvalidInputError(f"{storage} is too long; names of containers begin with it, so use up to 30 characters")
    return Locations(normal[0], tuple(normal[1:]), kind)


def split(location: str) -> Prefix:
    """The bucket and the key prefix of a location in a cloud."""
    bucket, _, path = location.partition("://")[2].partition("/")
    return Prefix(bucket, f"{path}/" if path else "")


def _explain(kind: Kind) -> str:
    if kind == "container":
        return (
            "without a hierarchical namespace each table is a container of its own, so write az://name alone; with "
            "one, start the server with --hierarchical"
        )
    return "all locations of a server are folders" if kind == "folder" else f"write {kind}://…; {_RULE}"


def _children(parent: str, kind: Kind) -> str:
    return f"{parent}-" if kind == "container" else f"{parent}/"


def _is_valid(text: str, kind: Kind) -> bool:
    return len(text) <= _MAX_LENGTH and _GRAMMARS[kind].fullmatch(text) is not None


def _is_within(location: str, parent: str) -> bool:
    location, parent = location.removeprefix("file://"), parent.removeprefix("file://")
    return location == parent or location.startswith(f"{parent}/")
