"""Refs: names of versions. A branch moves with its commits, a tag does not; a saved view is a tag with rows.

A ref is a folder of numbered create-only objects; the last one is valid. An object without a target deletes the
ref. Branches have unique ids, so a reused name never shows the rows of a deleted branch.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal
from urllib.parse import quote, unquote

from penstock.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from penstock.format import CommitRef, TableInfo, decode_sealed, seal, view_key
from penstock.history._listing import list_objects
from penstock.history._log import create_or_read
from penstock.history._version_names import branch_name
from penstock.storage import Store, thread_map
from penstock.types import Buffer

MAIN = "main"

RefType = Literal["branches", "tags", "views"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_READERS = 8


@dataclass(frozen=True)
class Ref:
    """The target of a name, from one write to the next."""

    branch: str | None
    """Id of the branch; None if the ref is deleted."""
    version: int | None
    """The version of a tag; None for a branch."""
    write_id: str

    def encode(self) -> bytes:
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Ref":
        return decode_sealed(Ref, data, where)


@dataclass(frozen=True)
class ViewRef(Ref):
    """A saved view, from one write to the next: its version, and the object with its rows."""

    object: str = ""
    """Id of the object."""
    length: int = 0
    crc: int = 0
    rows: int = 0
    description: str = ""

    @staticmethod
    def decode(data: Buffer, where: str) -> "ViewRef":
        return decode_sealed(ViewRef, data, where)

    @property
    def key(self) -> str:
        """The key of the object; raises `CorruptError` for an id that is none."""
        return view_key(self.object)

    @property
    def commit(self) -> CommitRef | None:
        """The version; None if the view is deleted."""
        return None if self.branch is None or self.version is None else CommitRef(self.branch, self.version)


class Refs:
    """The branches, tags and saved views of a table."""

    def __init__(self, store: Store, info: TableInfo) -> None:
        self._store, self._info = store, info

    def branches(self) -> dict[str, str]:
        """Branch names to branch ids."""
        found = {name: ref.branch for name, ref in self._all("branches").items()}
        return {MAIN: self._info.main, **{name: id for name, id in sorted(found.items()) if id is not None}}

    def tags(self) -> dict[str, CommitRef]:
        """Tag names to versions."""
        found = sorted(self._all("tags").items())
        return {
            name: CommitRef(ref.branch, ref.version) for name, ref in found if ref.branch and ref.version is not None
        }

    def branch_name(self, branch_id: str) -> str:
        """The name of a branch; the first digits of its id if it has no name any more."""
        return branch_name(self.branches(), branch_id)

    def deleted_branches(self) -> dict[str, float]:
        """Ids of deleted branches to the times of their deletion by the store's clock."""
        times: dict[str, float] = {}
        last: dict[str, str | None] = {}
        for item in list_objects(self._store, "refs/branches/"):
            folder = item.key.rpartition("/")[0]
            ref = self._get(item.key)
            if ref.branch is None and (deleted := last.get(folder)) is not None:
                times[deleted] = max(item.modified_s, times.get(deleted, 0.0))  # a rename deletes the old name, too
            last[folder] = ref.branch
        return times

    def branch(self, name: str) -> str:
        """The id of a branch; raises `NotFoundError`."""
        if name == MAIN:
            return self._info.main
        ref = self._read("branches", name)[1]
        if ref is None or ref.branch is None:
            raise NotFoundError(f"{self._store.uri} has no branch {name!r}; it has {', '.join(self.branches())}")
        return ref.branch

    def tag(self, name: str) -> CommitRef:
        """The version of a tag; raises `NotFoundError`."""
        ref = self._read("tags", name)[1]
        if ref is None or ref.branch is None or ref.version is None:
            raise NotFoundError(f"{self._store.uri} has no tag {name!r}; it has {', '.join(self.tags()) or 'none'}")
        return CommitRef(ref.branch, ref.version)

    def views(self) -> dict[str, ViewRef]:
        """Names to saved views."""
        found = sorted(self._all("views").items())
        return {name: ref for name, ref in found if isinstance(ref, ViewRef) and ref.commit is not None}

    def view(self, name: str) -> ViewRef:
        """A saved view; raises `NotFoundError`."""
        ref = self._read("views", name)[1]
        if not isinstance(ref, ViewRef) or ref.commit is None:
            raise NotFoundError(f"{self._store.uri} has no view {name!r}; it has {', '.join(self.views()) or 'none'}")
        return ref

    def create_view(self, name: str, view: ViewRef) -> None:
        """Name a saved view; raises `AlreadyExistsError`."""
        self.check_view_available(name)
        self._put("views", name, self._read("views", name)[0] + 1, view)

    def check_view_available(self, name: str) -> None:
        """Raise `InvalidInputError` for an invalid name, `AlreadyExistsError` for one that a saved view has."""
        _check_name(name)
        ref = self._read("views", name)[1]
        if ref is not None and ref.branch is not None:
            raise AlreadyExistsError(f"there is a view {name!r} already; delete or rename it first")

    def check_available(self, name: str) -> None:
        """Raise `InvalidInputError` for an invalid name, `AlreadyExistsError` for one that a branch or a tag has."""
        _check_name(name)
        ref_types: tuple[RefType, ...] = ("branches", "tags")
        for ref_type in ref_types:
            ref = self._read(ref_type, name)[1]
            if name == MAIN or (ref is not None and ref.branch is not None):
                raise AlreadyExistsError(
                    f"there is a {_SINGULAR[ref_type]} {name!r} already; delete or rename it first"
                )

    def create(self, ref_type: RefType, name: str, branch: str, version: int | None) -> None:
        """Create a branch or a tag."""
        self.check_available(name)
        self._write(ref_type, name, self._read(ref_type, name)[0] + 1, branch, version)

    def delete(self, ref_type: RefType, name: str) -> None:
        """Delete a branch, a tag or a saved view; its name becomes available."""
        if name == MAIN and ref_type == "branches":
            raise InvalidInputError("the branch main can be neither deleted nor renamed")
        last, ref = self._read(ref_type, name)
        if ref is None or ref.branch is None:
            raise NotFoundError(f"{self._store.uri} has no {_SINGULAR[ref_type]} {name!r}")
        self._write(ref_type, name, last + 1, None, None)

    def rename(self, ref_type: RefType, old: str, new: str) -> None:
        """Rename a branch, a tag or a saved view; not atomic: both names exist for a moment."""
        if old == MAIN and ref_type == "branches":
            raise InvalidInputError("the branch main can be neither deleted nor renamed")
        if ref_type == "branches":
            self.create(ref_type, new, self.branch(old), None)
        elif ref_type == "views":
            self.create_view(new, replace(self.view(old), write_id=secrets.token_hex(16)))
        else:
            target = self.tag(old)
            self.create(ref_type, new, target.branch, target.version)
        self.delete(ref_type, old)

    def _all(self, ref_type: RefType) -> Mapping[str, Ref]:
        newest: dict[str, str] = {}
        for item in list_objects(self._store, f"{_PREFIXES[ref_type]}/"):
            if item.key.endswith(".json"):  # not the object of a saved view
                newest[item.key.split("/")[-2]] = item.key
        refs = thread_map(self._get, list(newest.values()), max_workers=_READERS)
        return {unquote(name): ref for name, ref in zip(newest, refs, strict=True)}

    def _read(self, ref_type: RefType, name: str) -> tuple[int, Ref | None]:
        """Number and content of the last object of a ref; -1 and None if there is none."""
        keys = [item.key for item in list_objects(self._store, f"{_folder(ref_type, name)}/")]
        if not keys:
            return -1, None
        return int(keys[-1].rpartition("/")[2].removesuffix(".json")), self._get(keys[-1])

    def _get(self, key: str) -> Ref:
        decode = ViewRef.decode if key.startswith("views/") else Ref.decode
        return decode(self._store.get(key), f"{self._store.uri}/{key}")

    def _write(self, ref_type: RefType, name: str, number: int, branch: str | None, version: int | None) -> None:
        self._put(ref_type, name, number, Ref(branch, version, secrets.token_hex(16)))

    def _put(self, ref_type: RefType, name: str, number: int, ref: Ref) -> None:
        key = f"{_folder(ref_type, name)}/{number:020}.json"
        found = create_or_read(self._store, key, ref, Ref.decode, single_writer=self._info.single_writer)
        if found.write_id != ref.write_id:
            raise ConflictError(f"another writer changed the {_SINGULAR[ref_type]} {name!r} just now; try again")


_SINGULAR = {"branches": "branch", "tags": "tag", "views": "view"}
_PREFIXES = {"branches": "refs/branches", "tags": "refs/tags", "views": "views"}


def _check_name(name: str) -> None:
    """Raise `InvalidInputError` for a name that could be mistaken for something else, such as a version number."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name or "//" in name or name.isdigit():
        raise InvalidInputError(
            f"{name!r} cannot be the name of a branch, a tag or a view: use letters, digits, and . _ / - inside, 128"
            " characters at most, and not digits alone"
        )


def _folder(ref_type: RefType, name: str) -> str:
    return f"{_PREFIXES[ref_type]}/{quote(name, safe='')}"
