"""What the CSV, JSON, JSONL and COCO files beside images say of them."""

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from posixpath import normpath
from typing import Any

from penstock.errors import InvalidInputError
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Boxes, Json, Kind, Label, List, Tensor, Text
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import suffix
from penstock.ingest.sources._images_coco import Coco, is_coco
from penstock.storage import ObjectInfo

_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
_FILE_NAMES = ("file_name", "filename", "file", "path", "image", "image_path")
_MAX_BYTES = 2 << 30
_MAX_TABLES = 1000
_MAX_ALIKE = 16
_SHOWN = 3
_READINGS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"-?(0|[1-9][0-9]{0,17})"), int),
    (re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|nan", re.IGNORECASE), float),
    (re.compile(r"true|false", re.IGNORECASE), lambda cell: cell.lower() == "true"),
    (re.compile(r"[\[{].*[\]}]", re.DOTALL), json.loads),
)
"""What text in a CSV file may mean, if all of a column is such text; 007 is a name."""


@dataclass(frozen=True)
class Described:
    """What is known of images, column by column."""

    columns: Mapping[str, ColumnLike]
    told: Mapping[str, Sequence[Any]]
    places: Mapping[str, int]
    """Where in the columns an image is."""
    tables: str
    """The files that say so; empty where nothing describes images."""
    flaws: Mapping[str, Sequence[str]]
    """What is wrong inside those files."""

    def values(self, key: str) -> dict[str, Any]:
        return {name: column[self.places[key]] for name, column in self.told.items()}


def read_tables(bucket: Bucket, files: Sequence[ObjectInfo], images: Sequence[str]) -> Described:
    """Read all that describes images; a file that is about something else is left alone."""
    candidates = _candidates(bucket, files, images)
    names = _Names(images if candidates else ())
    records, coco = _Records(names), Coco(names.find)
    tables: list[str] = []
    flaws: dict[str, list[str]] = {}
    for file in candidates:
        found = _parsed(bucket, file)
        if is_coco(found.document):
            used = coco.add(file.key, found.document, found.flaws)
        else:
            used = records.add(file.key, found)
        if used:
            tables.append(file.key)
        if found.flaws:
            flaws[file.key] = found.flaws
    keys = list(dict.fromkeys(chain(records.entries, coco.scenes)))
    described = {**records.columns(keys), **coco.columns(keys)}
    return Described(
        {name: Column(kind, nullable=any(value is None for value in told)) for name, (kind, told) in described.items()},
        {name: told for name, (_, told) in described.items()},
        {key: place for place, key in enumerate(keys)},
        ", ".join(tables[:_SHOWN]) + (", …" if len(tables) > _SHOWN else ""),
        flaws,
    )


class _Names:
    """Finds the image that a table means: by a path from its own folder or the root, or as the only one so called."""

    def __init__(self, images: Sequence[str]) -> None:
        self._keys = frozenset(images)
        self._alike: dict[str, list[str]] = defaultdict(list)
        for key in images:
            self._alike[key.rpartition("/")[2]].append(key)

    def find(self, name: object, table: str) -> str | None:
        if not isinstance(name, str):
            return None
        folder, _, last = table.rpartition("/")
        path = normpath(name.replace("\\", "/"))
        for key in (normpath(f"{folder}/{path}"), path):
            if key in self._keys:
                return key
        alike = self._alike.get(path.rpartition("/")[2], ())
        alike = [key for key in alike if key.endswith(f"/{path}")] if len(alike) <= _MAX_ALIKE else []
        if len(alike) > 1:  # instances_val2017.json means val2017/1.jpg and not train2017/1.jpg
            words = set(re.split(r"[._-]", last))
            alike = [key for key in alike if words.intersection(key.split("/")[:-1])]
        return alike[0] if len(alike) == 1 else None


@dataclass
class _Parsed:
    """A file's content: a JSON document, or records with what a person calls the place of each."""

    document: Any
    records: list[tuple[str, dict[str, Any]]]
    flaws: list[str]
    cells: bool = False
    """Whether all values are text."""


class _Records:
    """Collects what tables say, record by record."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._cells: set[str] = set()
        self.entries: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, table: str, found: _Parsed) -> bool:
        """Take in a table, and complain into its flaws; returns whether it describes any image."""
        records = found.records
        spelled = {name.strip().lower(): name for _, record in records for name in record}
        naming = [spelled[name] for name in _FILE_NAMES if name in spelled]
        by = next((n for n in naming if any(self._names.find(record.get(n), table) for _, record in records)), None)
        if by is None:
            if naming:
                found.flaws[:] = [f"names no image that is here: {records[0][1].get(naming[0])!r:.100}, …"]
            elif records:
                found.flaws.clear()  # it is about something else
            return False
        for where, record in records:
            key = self._names.find(record.get(by), table)
            if key is None:
                found.flaws.append(f"{where} names {record.get(by)!r:.100}, which is not here")
                continue
            told = {_column_name(name): value for name, value in record.items() if name != by and name.strip()}
            self.entries[key].append(told)
            self._cells.update(told if found.cells else ())
        return True

    def columns(self, keys: Sequence[str]) -> dict[str, tuple[Kind, list[Any]]]:
        """What is said of each image, and the kinds of the columns.

        Where records of one image differ in a column, such as five captions in five lines, the column holds lists.
        """
        self._understand_cells()
        found: dict[str, tuple[Kind, list[Any]]] = {}
        for name in dict.fromkeys(name for told in self.entries.values() for record in told for name in record):
            each = [[record[name] for record in self.entries.get(key, ()) if name in record] for key in keys]
            present = [[value for value in values if value is not None] for values in each]
            if any(value != values[0] for values in present for value in values[1:]):
                column: list[Any] = [values or None for values in each]
            else:
                column = [next(iter(values), None) for values in present]
            if there := [value for value in column if value is not None]:
                found[name] = _kind(name, there), column
        return found

    def _understand_cells(self) -> None:
        for name in self._cells:
            records = [r for told in self.entries.values() for r in told if r.get(name) is not None]
            if all(isinstance(record[name], str) for record in records):
                for record, value in zip(records, _understood([r[name] for r in records]), strict=True):
                    record[name] = value


def _candidates(bucket: Bucket, files: Sequence[ObjectInfo], images: Sequence[str]) -> list[ObjectInfo]:
    """The files that may describe images; not those that are called like an image and belong to that one."""
    found = [file for file in files if suffix(file.key) in _ENDINGS and "/." not in f"/{file.key}"]
    stems = {_stem(key) for key in images} if found else ()
    found = [file for file in found if _stem(file.key) not in stems]
    if len(found) > _MAX_TABLES:
        raise InvalidInputError(
            f"{bucket.store.uri} has {len(found)} CSV and JSON files beside its images, and at most {_MAX_TABLES} are"
            " read; put what they say into one"
        )
    for file in found:
        if file.size > _MAX_BYTES:
            raise InvalidInputError(
                f"{bucket.uri(file.key)} has {file.size} bytes, and a file that describes images may have {_MAX_BYTES}"
                " at most; cut it into several, or move it away"
            )
    return found


def _stem(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]


def _parsed(bucket: Bucket, file: ObjectInfo) -> _Parsed:
    flaws: list[str] = []
    try:
        if suffix(file.key) == ".json":
            document = json.loads(bytes(bucket.read(file)))
            listed = document if isinstance(document, list) else _first_list(document)
            entries = enumerate(listed, 1)
            return _Parsed(
                document, [(f"entry {at}", entry) for at, entry in entries if isinstance(entry, dict)], flaws
            )
        with bucket.open(file) as stream:
            if suffix(file.key) in (".csv", ".tsv"):
                return _Parsed(None, list(_csv_lines(stream, flaws)), flaws, cells=True)
            return _Parsed(None, list(_json_lines(stream, flaws)), flaws)
    except (ValueError, RecursionError, csv.Error) as error:
        reason = str(error) or type(error).__name__
        raise InvalidInputError(
            f"{bucket.uri(file.key)}, beside the images, cannot be read: {reason}; mend it, or move it away"
        ) from error


def _first_list(document: object) -> list[Any]:
    values = document.values() if isinstance(document, dict) else ()
    return next((value for value in values if isinstance(value, list)), [])


def _json_lines(stream: Iterable[bytes], flaws: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            flaws.append(f"line {number} is not JSON: {error}")
            continue
        if isinstance(entry, dict):
            yield f"line {number}", entry
        else:
            flaws.append(f"line {number} is not an object with names and values")


def _csv_lines(stream: Any, flaws: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        head = text.readline()
        reader = csv.reader(chain([head], text), delimiter=max(",;\t", key=head.count), strict=True)
        names = next(reader, [])
        for cells in reader:
            if len(cells) == len(names):
                yield f"line {reader.line_num}", dict(zip(names, (cell or None for cell in cells), strict=True))
            elif cells:
                flaws.append(f"line {reader.line_num} has {len(cells)} fields, and the first line {len(names)}")


def _understood(cells: Sequence[str]) -> Sequence[Any]:
    """The numbers, truths or lists that all cells of a column are, or the cells."""
    for pattern, read in _READINGS:
        if all(pattern.fullmatch(cell) for cell in cells):
            try:
                return [read(cell) for cell in cells]
            except (ValueError, RecursionError):
                break
    return cells


def _column_name(given: str) -> str:
    name = "".join(filter(str.isprintable, given.strip())).lstrip("_")[:200] or "column"
    return f"given_{name}" if name in ("image", "path") else name


def _kind(name: str, values: Sequence[Any]) -> Kind:
    """The kind that takes all values of a column."""
    types = set(map(type, values))
    if dtype := _dtype(values):
        return Tensor(dtype)
    if types == {str}:
        return Label(tuple(sorted(set(values)))) if name == "label" else Text()
    if types == {list}:
        items = list(chain.from_iterable(values))
        if dtype := _dtype(items):
            lengths = set(map(len, values))
            return Tensor(dtype, (lengths.pop() if len(lengths) == 1 else None,))
        if all(type(item) is str for item in items):
            return List(Text())
        if all(type(item) is list and len(item) == 4 for item in items) and _dtype(list(chain.from_iterable(items))):
            corners = all(box[0] <= box[2] and box[1] <= box[3] for box in items)  # some size would be smaller
            return Boxes(layout="xyxy" if corners else "xywh")
    return Json()


def _dtype(values: Sequence[Any]) -> str | None:
    """The dtype that takes all values, if they are numbers."""
    types = set(map(type, values))
    if types == {bool}:
        return "bool"
    if not types or not types <= {int, float} or any(type(v) is int and abs(v) >= 1 << 63 for v in values):
        return None
    return "float64" if float in types else "int64"
