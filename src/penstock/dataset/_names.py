"""The names a table's versions have."""

from collections.abc import Iterator, Mapping

from penstock.history import Family, Refs, newest_commit
from penstock.storage import Store


class Names(Mapping[str, str]):
    """Branches, or tags, as a mapping from names to versions such as `main@7`; they are read anew each time."""

    def __init__(self, store: Store, refs: Refs, family: Family) -> None:
        self._store, self._refs, self._family = store, refs, family

    def __getitem__(self, name: str) -> str:
        if self._family == "branches":
            return f"{name}@{newest_commit(self._store, self._refs.branch(name)).version}"
        target = self._refs.tag(name)
        return f"{self._refs.name_of(target.branch)}@{target.version}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.branches() if self._family == "branches" else self._refs.tags())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def rename(self, old: str, new: str) -> None:
        """Give it another name."""
        self._refs.rename(self._family, old, new)

    def delete(self, name: str) -> None:
        """Give the name up. A branch's versions can be read for as long as vacuum would have kept them."""
        self._refs.delete(self._family, name)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name}: {version}' for name, version in self.items())}}}"
