"""Metadata of images from CSV, JSON, JSONL and COCO files next to them."""

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from posixpath import normpath
from typing import Any

from penstock.errors import InvalidInputError
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Boxes, Json, Kind, Label, List, Tensor, Text
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import extension
from penstock.ingest.sources._images_coco import Coco, is_coco
from penstock.ingest.sources._limits import UNREADABLE
from penstock.ingest.sources._streams import UnpackedFile, with_compressions
from penstock.ingest.sources._values import column_name
from penstock.storage import ObjectInfo

_JSON = with_compressions(".json")
_ENDINGS = (*_JSON, *with_compressions(".csv", ".tsv", ".jsonl", ".ndjson"))
_FILE_NAMES = ("file_name", "filename", "file", "path", "image", "image_path")
_MAX_BYTES = 2 << 30
_MAX_TABLES = 1000
_MAX_CANDIDATES = 16
_MAX_LISTED = 3
_CELL_TYPES: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"-?(0|[1-9][0-9]{0,17})"), int),
    (re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|nan", re.IGNORECASE), float),
    (re.compile(r"true|false", re.IGNORECASE), lambda cell: cell.lower() == "true"),
    (re.compile(r"[\[{].*[\]}]", re.DOTALL), json.loads),
)
"""Patterns and parsers of CSV cells; a parser applies if every cell of a column matches; 007 stays text."""


@dataclass(frozen=True)
class ImageMetadata:
    """The metadata of images, by column."""

    columns: Mapping[str, ColumnLike]
    column_values: Mapping[str, Sequence[Any]]
    indices: Mapping[str, int]
    """Image key to index in the columns."""
    tables: Sequence[str]
    """The keys of the metadata files."""
    errors: Mapping[str, Sequence[str]]
    """Problems in the metadata files, by key."""

    @property
    def table_names(self) -> str:
        """The metadata files, for messages."""
        return ", ".join(self.tables[:_MAX_LISTED]) + (", …" if len(self.tables) > _MAX_LISTED else "")

    def values(self, key: str) -> dict[str, Any]:
        return {name: column[self.indices[key]] for name, column in self.column_values.items()}


def read_metadata(reader: SourceReader, files: Sequence[ObjectInfo], images: Sequence[str]) -> ImageMetadata:
    """Read all metadata files; files that do not refer to images are ignored."""
    candidates = _candidates(reader, files, images)
    # An empty image is rejected as such, and its entries are no error.
    names = _ImageNames([*images, *reader.empty] if candidates else ())
    records, coco = _Records(names), Coco(names.find)
    tables: list[str] = []
    errors: dict[str, list[str]] = {}
    for file in candidates:
        found = _parse_table(reader, file)
        if is_coco(found.document):
            used = coco.add(file.key, found.document, found.errors)
        else:
            used = records.add(file.key, found)
        if used:
            tables.append(file.key)
        if found.errors:
            errors[file.key] = found.errors
    keys = list(dict.fromkeys(chain(records.entries, coco.annotations)))
    described = {**records.columns(keys), **coco.columns(keys)}
    return ImageMetadata(
        {
            name: Column(kind, nullable=any(value is None for value in values))
            for name, (kind, values) in described.items()
        },
        {name: values for name, (_, values) in described.items()},
        {key: index for index, key in enumerate(keys)},
        tables,
        errors,
    )


class _ImageNames:
    """Resolves file names in tables: relative to the table or the root, or by a unique base name."""

    def __init__(self, images: Sequence[str]) -> None:
        self._keys = frozenset(images)
        self._by_base_name: dict[str, list[str]] = defaultdict(list)
        for key in images:
            self._by_base_name[key.rpartition("/")[2]].append(key)

    def find(self, name: object, table: str) -> str | None:
        if not isinstance(name, str):
            return None
        folder, _, last = table.rpartition("/")
        path = normpath(name.replace("\\", "/"))
        for key in (normpath(f"{folder}/{path}"), path):
            if key in self._keys:
                return key
        matches = self._by_base_name.get(path.rpartition("/")[2], ())
        matches = [key for key in matches if key.endswith(f"/{path}")] if len(matches) <= _MAX_CANDIDATES else []
        if len(matches) > 1:  # instances_val2017.json refers to val2017/1.jpg, not to train2017/1.jpg
            words = set(re.split(r"[._-]", last))
            matches = [key for key in matches if words.intersection(key.split("/")[:-1])]
        return matches[0] if len(matches) == 1 else None


@dataclass
class _Parsed:
    """The content of a file: a JSON document, or records with their positions for messages."""

    document: Any
    records: list[tuple[str, dict[str, Any]]]
    errors: list[str]
    cells: bool = False
    """Whether all values are text, as in CSV."""


class _Records:
    """Collects the records of tables by image."""

    def __init__(self, names: _ImageNames) -> None:
        self._names = names
        self._cells: set[str] = set()
        self.entries: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, table: str, found: _Parsed) -> bool:
        """Add a table and append problems to its errors; returns whether it describes any image."""
        records = found.records
        by_lowercase = {name.strip().lower(): name for _, record in records for name in record}
        name_columns = [by_lowercase[name] for name in _FILE_NAMES if name in by_lowercase]
        key_column = next(
            (n for n in name_columns if any(self._names.find(record.get(n), table) for _, record in records)), None
        )
        if key_column is None:
            if name_columns:
                found.errors[:] = [f"names no image of the source: {records[0][1].get(name_columns[0])!r:.100}, …"]
            elif records:
                found.errors.clear()  # it does not refer to images
            return False
        for where, record in records:
            key = self._names.find(record.get(key_column), table)
            if key is None:
                found.errors.append(f"{where} names {record.get(key_column)!r:.100}, which is not in the source")
                continue
            values = {
                _metadata_name(name): value for name, value in record.items() if name != key_column and name.strip()
            }
            self.entries[key].append(values)
            self._cells.update(values if found.cells else ())
        return True

    def columns(self, keys: Sequence[str]) -> dict[str, tuple[Kind, list[Any]]]:
        """The kind and the values of each column.

        If records of one image differ in a column, such as five captions in five lines, the column holds lists.
        """
        self._parse_cells()
        found: dict[str, tuple[Kind, list[Any]]] = {}
        for name in dict.fromkeys(name for records in self.entries.values() for record in records for name in record):
            each = [[record[name] for record in self.entries.get(key, ()) if name in record] for key in keys]
            present = [[value for value in values if value is not None] for values in each]
            if any(value != values[0] for values in present for value in values[1:]):
                column: list[Any] = [values or None for values in each]
            else:
                column = [next(iter(values), None) for values in present]
            if non_null := [value for value in column if value is not None]:
                found[name] = _kind(name, non_null), column
        return found

    def _parse_cells(self) -> None:
        for name in self._cells:
            records = [r for entry in self.entries.values() for r in entry if r.get(name) is not None]
            if all(isinstance(record[name], str) for record in records):
                for record, value in zip(records, _parse_column([r[name] for r in records]), strict=True):
                    record[name] = value


def _candidates(reader: SourceReader, files: Sequence[ObjectInfo], images: Sequence[str]) -> list[ObjectInfo]:
    """The files that may be metadata; sidecar files of a single image, with its base name, are excluded."""
    found = [file for file in files if extension(file.key) in _ENDINGS and "/." not in f"/{file.key}"]
    stems = {_stem(key) for key in images} if found else ()
    found = [file for file in found if _stem(file.key) not in stems]
    if len(found) > _MAX_TABLES:
        raise InvalidInputError(
            f"{reader.store.uri} has {len(found)} CSV and JSON files next to its images; the limit is {_MAX_TABLES};"
            " merge them into one"
        )
    for file in found:
        if file.size > _MAX_BYTES:
            raise InvalidInputError(
                f"{reader.uri(file.key)} has {file.size} bytes, and the limit for a metadata file is {_MAX_BYTES};"
                " split it, or move it away"
            )
    return found


def _stem(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]


def _parse_table(reader: SourceReader, file: ObjectInfo) -> _Parsed:
    errors: list[str] = []
    try:
        if extension(file.key) in _JSON:
            with closing(UnpackedFile(reader, file)) as packed:
                document = json.loads(packed.read())
            listed = document if isinstance(document, list) else _first_list(document)
            entries = enumerate(listed, 1)
            return _Parsed(
                document, [(f"entry {at}", entry) for at, entry in entries if isinstance(entry, dict)], errors
            )
        with io.BufferedReader(UnpackedFile(reader, file)) as stream:
            if extension(file.key).startswith((".csv", ".tsv")):
                return _Parsed(None, list(_csv_lines(stream, errors)), errors, cells=True)
            return _Parsed(None, list(_json_lines(stream, errors)), errors)
    except (ValueError, RecursionError, csv.Error, *UNREADABLE) as error:
        reason = str(error) or type(error).__name__
        raise InvalidInputError(
            f"{reader.uri(file.key)}, next to the images, cannot be parsed: {reason}; fix it, or move it away"
        ) from error


def _first_list(document: object) -> list[Any]:
    values = document.values() if isinstance(document, dict) else ()
    return next((value for value in values if isinstance(value, list)), [])


def _json_lines(stream: Iterable[bytes], errors: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            errors.append(f"line {number} is not JSON: {error}")
            continue
        if isinstance(entry, dict):
            yield f"line {number}", entry
        else:
            errors.append(f"line {number} is not an object")


def _csv_lines(stream: Any, errors: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        head = text.readline()
        reader = csv.reader(chain([head], text), delimiter=max(",;\t", key=head.count), strict=True)
        names = next(reader, [])
        for cells in reader:
            if len(cells) == len(names):
                yield f"line {reader.line_num}", dict(zip(names, (cell or None for cell in cells), strict=True))
            elif cells:
                errors.append(f"line {reader.line_num} has {len(cells)} fields, and the header {len(names)}")


def _parse_column(cells: Sequence[str]) -> Sequence[Any]:
    """The cells of a column parsed as numbers, booleans or lists if all of them match; else unchanged."""
    for pattern, read in _CELL_TYPES:
        if all(pattern.fullmatch(cell) for cell in cells):
            try:
                return [read(cell) for cell in cells]
            except (ValueError, RecursionError):
                break
    return cells


def _metadata_name(given: str) -> str:
    name = column_name(given.strip(), ())
    return f"given_{name}" if name in ("image", "path") else name


def _kind(name: str, values: Sequence[Any]) -> Kind:
    """The kind that fits all values of a column."""
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
            corners = all(box[0] <= box[2] and box[1] <= box[3] for box in items)  # in xywh some size would be smaller
            return Boxes(layout="xyxy" if corners else "xywh")
    return Json()


def _dtype(values: Sequence[Any]) -> str | None:
    """The dtype that fits all values, or None if they are not numbers."""
    types = set(map(type, values))
    if types == {bool}:
        return "bool"
    if not types or not types <= {int, float} or any(type(v) is int and abs(v) >= 1 << 63 for v in values):
        return None
    return "float64" if float in types else "int64"
