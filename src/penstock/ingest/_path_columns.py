"""Columns from the names of folders and files: splits (`train/`, `test-0-of-2.parquet`) and partitions (`year=2024/`).

Files of several splits or partitions become rows of one table. Without these columns the rows would be mixed, and a
training set could not be separated from its test set.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.errors import SourceChangedError
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Label, Text
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Row, RowBatch, SourceItem, SourceScan
from penstock.storage import ObjectInfo

SPLIT = "split"
_WORDS = r"(?:train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval)"
_FOLDER = re.compile(rf"{_WORDS}[-_]?[0-9]*", re.IGNORECASE)
_FILE = re.compile(rf"({_WORDS})(?:[-_.][0-9]+(?:-of-[0-9]+)?(?:-[0-9a-f]+)?)?(?:\.[a-z0-9]+)+", re.IGNORECASE)
_PARTITION = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DATASET_DICT = "dataset_dict.json"
_MAX_LISTED = 5


@dataclass(frozen=True)
class _PathColumn:
    """A column whose value is in the path of a file."""

    name: str
    depth: int | None
    """The depth of the folder; None for the name of the file."""
    is_integer: bool = False

    def value(self, key: str) -> str | int | None:
        *folders, name = key.split("/")
        if self.depth is None:
            match = _FILE.fullmatch(name)
            return match[1] if match else None
        part = folders[self.depth]
        if self.name == SPLIT and "=" not in part:
            return part
        text = unquote(part.partition("=")[2])
        if text in ("", _NULL_PARTITION):
            return None
        return int(text) if self.is_integer else text


@dataclass(frozen=True)
class _WithPathColumns(SourceScan):
    """A scan whose rows also have the columns of their paths; a column of the files with the same name remains."""

    inner: SourceScan
    path_columns: tuple[_PathColumn, ...]
    files: Sequence[ObjectInfo] = field(init=False)
    columns: Mapping[str, ColumnLike] = field(init=False)
    notes: Sequence[str] = ()
    read_names: tuple[str, ...] = ()
    """Keys of files that were read for the names of the splits."""
    companions: Mapping[str, Collection[str]] = field(init=False)
    described_by: Collection[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.inner.files)
        object.__setattr__(self, "columns", self.inner.columns)
        object.__setattr__(self, "companions", self.inner.companions)
        object.__setattr__(self, "described_by", (*self.inner.described_by, *self.read_names))

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for values, group in groupby(files, lambda file: {c.name: c.value(file.key) for c in self.path_columns}):
            for item in self.inner.rows(reader, list(group)):
                yield _with_values(item, values)


def _with_values(item: SourceItem, values: Mapping[str, Any]) -> SourceItem:
    if isinstance(item, Reject):
        return item
    if isinstance(item, Row):
        return Row(item.name, {**values, **item.values})
    batch = item.batch
    for name, value in values.items():
        if name not in batch.schema.names:
            kind = pa.int64() if isinstance(value, int) else pa.string()
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), len(batch)))
    return RowBatch(item.name, batch)


def with_path_columns(reader: SourceReader, objects: Sequence[ObjectInfo], scan: SourceScan) -> SourceScan:
    """The scan with a column `split`, if its files belong to several, and a column for each Hive partition."""
    keys = [file.key for file in scan.files]
    folders = {key.rpartition("/")[0] for key in keys}
    found = _partitions(folders)
    found = [column for column in found if column.name not in scan.columns]
    if SPLIT not in {*scan.columns, *(column.name for column in found)}:
        found += _split(keys, folders, _split_names(reader, objects))
    if not found:
        return scan
    notes = (*scan.notes, *(_note(column, keys) for column in found))
    return _WithPathColumns(scan, tuple(found), notes, tuple(file.key for file in objects if _is_dataset_dict(file)))


def split_depth(folders: Iterable[str], names: Iterable[str] = ()) -> int | None:
    """The depth at which every folder is a split: named like one, or one of `names`; None if there is none."""
    known = frozenset(names)
    paths = [folder.split("/") if folder else [] for folder in folders]
    for depth in range(min(map(len, paths), default=0)):
        found = {path[depth] for path in paths}
        if found <= known or all(map(_FOLDER.fullmatch, found)):
            return depth
    return None


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


def _split(keys: Sequence[str], folders: Iterable[str], names: Iterable[str]) -> list[_PathColumn]:
    column = _PathColumn(SPLIT, split_depth(folders, names))
    values = {column.value(key) for key in keys}
    return [column] if len(values) > 1 and None not in values else []


def _split_names(reader: SourceReader, objects: Sequence[ObjectInfo]) -> list[str]:
    """The splits of a `DatasetDict` that Hugging Face's `datasets` saved; empty if it is none."""
    for file in objects:
        if _is_dataset_dict(file):
            try:
                names = json.loads(bytes(reader.read(file)))["splits"]
            except (SourceChangedError, ValueError, KeyError, TypeError, RecursionError):
                return []
            return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return []


def _is_dataset_dict(file: ObjectInfo) -> bool:
    return file.key.rpartition("/")[2] == _DATASET_DICT


def _partitions(folders: Iterable[str]) -> list[_PathColumn]:
    """The columns of folders named `column=value` by Hive's convention, if every file is in such a folder."""
    paths = [folder.split("/") if folder else [] for folder in folders]
    found: list[_PathColumn] = []
    for depth in range(min(map(len, paths), default=0)):
        matches = [_PARTITION.fullmatch(path[depth]) for path in paths]
        names = {match[1] if match else None for match in matches}
        if len(names) == 1 and (name := names.pop()) is not None and not name.startswith("_") and name.isprintable():
            texts = {match[2] for match in matches if match} - {"", _NULL_PARTITION}
            found.append(_PathColumn(unquote(name), depth, all(map(_INTEGER.fullmatch, texts)) and bool(texts)))
    return found


def _note(column: _PathColumn, keys: Sequence[str]) -> str:
    values = sorted({str(column.value(key)) for key in keys})
    listed = ", ".join(values[:_MAX_LISTED]) + (", …" if len(values) > _MAX_LISTED else "")
    where = "files" if column.depth is None else "folders"
    return f"column {column.name!r} is added from the names of {where}: {listed}"
