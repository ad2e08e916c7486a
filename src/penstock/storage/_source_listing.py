"""List the objects of a foreign store or folder, where any name may occur and links may lead anywhere."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import InvalidInputError
from penstock.storage._folder import FolderStore, _info, _translated, leads_nowhere
from penstock.storage._keys import check_key
from penstock.storage._store import ObjectInfo, Store

_FOLLOW = "follow it with follow_links=True (--follow-links)"


class SkippedObject(NamedTuple):
    """An object that cannot be read under its name, and the reason."""

    key: str
    """Its name, with escapes for characters that cannot be printed."""
    reason: str


def list_source(store: Store, *, follow_links: bool) -> Iterator[ObjectInfo | SkippedObject]:
    """List all objects in key order; those that cannot be read under their names are yielded as `SkippedObject`.

    In a folder, a link to a file of the same folder is followed. Links to other files, and to folders, are followed
    only with `follow_links`, and never in a circle.
    """
    walk = _FolderWalk(store, follow_links=follow_links).walk if isinstance(store, FolderStore) else store.list
    for item in walk():
        if isinstance(item, SkippedObject):
            yield SkippedObject(_printable(item.key), item.reason)
            continue
        try:
            check_key(item.key)
        except InvalidInputError:
            reason = "its name has a backslash, a control character, or bytes that are not UTF-8; rename it"
            yield SkippedObject(_printable(item.key), reason)
        else:
            yield item


def _printable(key: str) -> str:
    raw = os.fsencode(key).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in raw)


class _FolderWalk:
    """Walks a folder and the links in it."""

    def __init__(self, store: FolderStore, *, follow_links: bool) -> None:
        self._uri, self._follow_links = store.uri, follow_links
        self._root = os.path.realpath(store.uri)

    def walk(self) -> Iterator[ObjectInfo | SkippedObject]:
        with _translated("list", self._uri):
            yield from self._walk("", (self._root,))

    def _walk(self, folder: str, parents: tuple[str, ...]) -> Iterator[ObjectInfo | SkippedObject]:
        """List a folder; `parents` are the real paths of the folders on the way to it."""
        try:
            with os.scandir(f"{self._uri}/{folder}") as entries:
                found = sorted((entry.name + "/" * _is_folder(entry), entry) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in found:
            real_path = entry.path
            if entry.is_symlink():
                real_path = os.path.realpath(entry.path)
                if (problem := self._link_problem(entry, real_path, parents)) is not None:
                    yield SkippedObject(folder + entry.name, problem)
                    continue
            if name.endswith("/"):
                yield from self._walk(folder + name, (*parents, real_path))
            elif entry.is_file():
                yield _info(folder + name, entry.stat())
            else:
                yield SkippedObject(folder + name, "is not a file")

    def _link_problem(self, entry: os.DirEntry[str], real_path: str, parents: tuple[str, ...]) -> str | None:
        """Why a link is not followed, or None."""
        if leads_nowhere(entry) or not (_is_folder(entry) or entry.is_file()):
            return "is a link that leads to no file"
        if _is_folder(entry) and real_path in parents:
            return "is a link to a folder that contains it"
        if self._follow_links:
            return None
        if _is_folder(entry):
            return f"is a link to a folder; {_FOLLOW}"
        inside = real_path.startswith(f"{self._root}/")
        return None if inside else f"is a link out of the folder; {_FOLLOW}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return not leads_nowhere(entry) and entry.is_dir()
