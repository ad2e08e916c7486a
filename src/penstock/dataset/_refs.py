"""Branches and tags as mappings from names to versions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from penstock.errors import escape_controls
from penstock.history import Refs, RefType, format_version, newest_commit
from penstock.storage import Store

D = TypeVar("D")


class RefMapping(Mapping[str, str], Generic[D]):
    """Names of branches or tags, mapped to versions such as `main@7`; each access reads the store."""

    _ref_type: RefType

    def __init__(self, store: Store, refs: Refs, create: Callable[[str, int | str | None], D]) -> None:
        self._store, self._refs, self._create = store, refs, create

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def rename(self, old: str, new: str) -> None:
        """Rename it. Raises `NotFoundError` if there is no `old`, `AlreadyExistsError` if there is a `new`."""
        self._refs.rename(self._ref_type, old, new)

    def delete(self, name: str) -> None:
        """Delete the name. The versions of a deleted branch stay readable for the retention time of vacuum."""
        self._refs.delete(self._ref_type, name)

    def __repr__(self) -> str:
        return escape_controls(f"{{{', '.join(f'{name}: {version}' for name, version in self.items())}}}")


class Branches(RefMapping[D]):
    """Branches and their newest versions."""

    _ref_type = "branches"

    def __getitem__(self, name: str) -> str:
        return format_version(name, newest_commit(self._store, self._refs.branch(name)).version)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.branches())

    @property
    def ids(self) -> dict[str, str]:
        """Branch ids by name: a commit names its branch by id, which a rename does not change."""
        return dict(self._refs.branches())

    def create(self, name: str, at: int | str | None = None) -> D:
        """Create a branch at the current version, or at another one, and return the table on it; copies no data.

        Raises `AlreadyExistsError` if the name is in use, and `NotFoundError` for an unknown version.
        """
        return self._create(name, at)


class Tags(RefMapping[None]):
    """Tags and the versions they name; vacuum keeps tagged versions."""

    _ref_type = "tags"

    def __getitem__(self, name: str) -> str:
        target = self._refs.tag(name)
        return format_version(self._refs.branch_name(target.branch), target.version)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.tags())

    def create(self, name: str, at: int | str | None = None) -> None:
        """Tag the current version, or another one.

        Raises `AlreadyExistsError` if the name is in use, and `NotFoundError` for an unknown version.
        """
        self._create(name, at)
