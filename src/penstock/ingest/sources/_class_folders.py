"""Classes and splits from the folders of files that are a row each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.format import Column, ColumnLike
from penstock.format.kinds import Label, Text
from penstock.ingest._path_columns import split_depth


@dataclass(frozen=True)
class ClassFolders:
    """Classes and splits, from the folders of the files."""

    class_depth: int
    """Depth at which class folders start: below train, val, …, if every file is in such a folder."""
    splits: bool
    classes: tuple[str, ...]
    all_classed: bool
    """Whether every file is in a class folder."""

    @classmethod
    def of(cls, keys: Iterable[str]) -> "ClassFolders":
        paths = [folder.split("/") if folder else [] for folder in {key.rpartition("/")[0] for key in keys}]
        depth = split_depth(map("/".join, paths))
        class_depth = 0 if depth is None else depth + 1
        splits = depth is not None and len({path[depth] for path in paths}) > 1
        classes = {path[-1] for path in paths if len(path) > class_depth}
        all_classed = all(len(path) > class_depth for path in paths)
        return cls(class_depth, splits, tuple(sorted(classes)) if len(classes) > 1 else (), all_classed)

    def columns(self) -> dict[str, ColumnLike]:
        found: dict[str, ColumnLike] = {}
        if self.classes:
            found["label"] = Column(Label(self.classes), nullable=not self.all_classed)
        if self.splits:
            found["split"] = Text()
        return found

    def values(self, key: str) -> dict[str, Any]:
        path = key.split("/")[:-1]
        found: dict[str, Any] = {}
        if self.classes:
            found["label"] = path[-1] if len(path) > self.class_depth else None
        if self.splits:
            found["split"] = path[self.class_depth - 1]
        return found
