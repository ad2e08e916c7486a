"""Names for versions: branches, which move, and tags, which do not.

A name is a folder of numbered create-only objects, and the last one counts; one without a target says that the name is
free again. Branches have ids of their own, so a name that comes back never shows the old branch's rows.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import quote, unquote

from penstock.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, StorageError
from penstock.format import Parent, TableInfo, known, seal, unseal
from penstock.history._log import create_object
from penstock.storage import Store, run_all

MAIN = "main"

Family = Literal["branches", "tags"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_READERS = 8


@dataclass(frozen=True)
class Ref:
    """What a name stands for, from one moment on."""

    branch: str | None
    """Id of the branch; None where the name was given up."""
    version: int | None
    """The version that a tag names; None for a branch."""
    write_id: str


class Refs:
    """The names of a table."""

    def __init__(self, store: Store, info: TableInfo) -> None:
        self._store, self._info = store, info

    def branches(self) -> dict[str, str]:
        """Names of the branches and their ids."""
        found = {name: ref.branch for name, ref in self._all("branches").items()}
        return {MAIN: self._info.main, **{name: id for name, id in sorted(found.items()) if id is not None}}

    def tags(self) -> dict[str, Parent]:
        """Names of the tags and the versions they name."""
        found = sorted(self._all("tags").items())
        return {name: Parent(ref.branch, ref.version) for name, ref in found if ref.branch and ref.version is not None}

    def name_of(self, branch_id: str) -> str:
        """The name of a branch; the beginning of its id where it has none any more."""
        return next((name for name, id in self.branches().items() if id == branch_id), branch_id[:8])

    def given_up(self) -> dict[str, float]:
        """Ids of branches whose names were given up, and when by the store's clock."""
        times: dict[str, float] = {}
        last: dict[str, str | None] = {}
        for item in self._store.list("refs/branches/"):
            folder = item.key.rpartition("/")[0]
            ref = self._get(item.key)
            if ref.branch is None and (before := last.get(folder)) is not None:
                times[before] = item.modified_s
            last[folder] = ref.branch
        return times

    def branch(self, name: str) -> str:
        """The id of a branch."""
        if name == MAIN:
            return self._info.main
        ref = self._read("branches", name)[1]
        if ref is None or ref.branch is None:
            raise NotFoundError(f"{self._store.uri} has no branch {name!r}; it has {', '.join(self.branches())}")
        return ref.branch

    def tag(self, name: str) -> Parent:
        """The version that a tag names."""
        ref = self._read("tags", name)[1]
        if ref is None or ref.branch is None or ref.version is None:
            raise NotFoundError(f"{self._store.uri} has no tag {name!r}; it has {', '.join(self.tags()) or 'none'}")
        return Parent(ref.branch, ref.version)

    def check_free(self, name: str) -> None:
        """Refuse a name that cannot be one, or that a branch or a tag has: a name means one thing."""
        _check_name(name)
        families: tuple[Family, ...] = ("branches", "tags")
        for family in families:
            ref = self._read(family, name)[1]
            if name == MAIN or (ref is not None and ref.branch is not None):
                raise AlreadyExistsError(f"there is a {_WORDS[family]} {name!r} already; delete or rename it first")

    def create(self, family: Family, name: str, branch: str, version: int | None) -> None:
        """Give a free name a meaning."""
        self.check_free(name)
        self._write(family, name, self._read(family, name)[0] + 1, branch, version)

    def delete(self, family: Family, name: str) -> None:
        """Give a name up; it can be used again."""
        if name == MAIN and family == "branches":
            raise InvalidInputError("the branch main can be neither deleted nor renamed")
        last, ref = self._read(family, name)
        if ref is None or ref.branch is None:
            raise NotFoundError(f"{self._store.uri} has no {_WORDS[family]} {name!r}")
        self._write(family, name, last + 1, None, None)

    def rename(self, family: Family, old: str, new: str) -> None:
        """Let a name go over to another; for a moment both are there."""
        if old == MAIN and family == "branches":
            raise InvalidInputError("the branch main can be neither deleted nor renamed")
        if family == "branches":
            self.create(family, new, self.branch(old), None)
        else:
            target = self.tag(old)
            self.create(family, new, target.branch, target.version)
        self.delete(family, old)

    def _all(self, family: Family) -> Mapping[str, Ref]:
        newest: dict[str, str] = {}
        for item in self._store.list(f"refs/{family}/"):
            newest[item.key.split("/")[2]] = item.key
        refs = run_all(self._get, list(newest.values()), max_workers=_READERS)
        return {unquote(name): ref for name, ref in zip(newest, refs, strict=True)}

    def _read(self, family: Family, name: str) -> tuple[int, Ref | None]:
        """The number and the content of the last object of a name."""
        keys = [item.key for item in self._store.list(f"{_folder(family, name)}/")]
        if not keys:
            return -1, None
        return int(keys[-1].rpartition("/")[2].removesuffix(".json")), self._get(keys[-1])

    def _get(self, key: str) -> Ref:
        return known(Ref, unseal(self._store.get(key), f"{self._store.uri}/{key}"))

    def _write(self, family: Family, name: str, number: int, branch: str | None, version: int | None) -> None:
        ref = Ref(branch, version, secrets.token_hex(16))
        key = f"{_folder(family, name)}/{number:020}.json"
        try:
            create_object(self._store, key, seal(asdict(ref)), single_writer=self._info.single_writer)
        except (AlreadyExistsError, StorageError) as error:
            try:
                found = self._get(key)
            except NotFoundError:
                raise error from None
            if found.write_id != ref.write_id:
                raise ConflictError(
                    f"somebody else changed the {_WORDS[family]} {name!r} just now; try again"
                ) from None


_WORDS = {"branches": "branch", "tags": "tag"}


def _check_name(name: str) -> None:
    """Refuse names that could be mistaken for something else, such as the number of a version."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name or "//" in name or name.isdigit():
        raise InvalidInputError(
            f"{name!r} cannot be a branch or a tag: use letters, digits, and . _ / - inside, 128 characters at most,"
            " and not digits alone"
        )


def _folder(family: Family, name: str) -> str:
    return f"refs/{family}/{quote(name, safe='')}"
