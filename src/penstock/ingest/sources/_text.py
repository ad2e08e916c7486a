"""Text files: CSV and TSV with a header line, and JSON lines; plain or compressed.

CSV: Arrow infers the types from the first megabytes of the first file, and they apply to all files, so that shards
agree. Every value is read as text and then parsed, so that the result does not depend on the rest of the file, and a
value that does not parse rejects only its row. In columns that are not text, the usual markers of a missing value
(empty, NA, null, …) are nulls. Rows are numbered from 1, which is the header line. The delimiter is a tab in .tsv
files, else the most frequent of comma, semicolon, tab and bar in the header line.

JSON lines: a column has the kind that fits the first lines of some files, and JSON if none does. A line with a key that
none of them has is rejected. Lists of floats of equal length whose column name suggests an embedding become embeddings
in float32; a later line of another length is rejected.
"""

import codecs
import csv
import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format import Column, ColumnLike, infer_schema
from penstock.format.kinds import BadValueError, Embedding, Json, Kind, List, Tensor
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import (
    Reject,
    RejectedFileError,
    Row,
    Source,
    SourceItem,
    SourceScan,
    evenly_spaced,
    extension,
)
from penstock.ingest.sources._arrow_columns import ColumnPlan, Converted, cast_to, is_vector_name
from penstock.ingest.sources._limits import UNREADABLE, DamagedFileError
from penstock.ingest.sources._streams import (
    BUFFER_BYTES,
    UnpackedFile,
    line_rows,
    read_lines,
    too_long,
    with_compressions,
)
from penstock.ingest.sources._tabular import (
    RecordBlock,
    all_end_in,
    column_indices,
    data_files,
    first_readable,
    open_tabular,
)
from penstock.ingest.sources._values import column_name, parse_json
from penstock.storage import ObjectInfo

_CSV = with_compressions(".csv", ".tsv")
_JSONL = with_compressions(".jsonl", ".ndjson")
_JSON = with_compressions(".json")
"""JSON lines too, if there are no other files with rows: next to them they are metadata."""
_BLOCK_BYTES = 2 << 20
"""The limit on a CSV row; Arrow always reads 32 blocks ahead."""
_DELIMITERS = ",;\t|"
_PLACEHOLDER = "\ufdd0"
"""A noncharacter code point, which valid text does not contain."""
_PLACEHOLDER_HANDLER = "penstock-placeholder"
codecs.register_error(
    _PLACEHOLDER_HANDLER, lambda error: (_PLACEHOLDER, error.end if isinstance(error, UnicodeDecodeError) else 0)
)
_SAMPLED_FILES, _SAMPLED_LINES, _SAMPLED_BYTES = 8, 1024, 4 << 20


@cache
def _null_markers() -> pa.Array:
    """Made on first use: `pa.array` imports pandas, which takes longer than everything else that penstock imports."""
    return pa.array(pacsv.ConvertOptions().null_values)


class _ValidText(UnpackedFile):
    """Text in which a placeholder replaces invalid UTF-8, on which Arrow would fail for the whole block."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        super().__init__(reader, file)
        self._decoder = codecs.getincrementaldecoder("utf-8")(_PLACEHOLDER_HANDLER)

    def _read(self, size: int) -> bytes:
        text = ""
        data = b" "
        while data and not text:  # the data may end inside a character
            data = self.source.read(max(1, size // len(_PLACEHOLDER.encode()) - 4))
            text = self._decoder.decode(data, final=not data)
        return text.encode()


def _open_csv(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    found = data_files(reader, files, _CSV)
    return open_tabular(reader, found, first_readable(reader, found, _plan_csv), _scan_csv)


def _plan_csv(reader: SourceReader, file: ObjectInfo) -> list[ColumnPlan]:
    with _csv_reader(reader, file, deque(), parsed=True) as batches:
        types = [_widened(type) for type in batches.schema.types]
    with _csv_reader(reader, file, deque(), parsed=False) as batches:
        first = next(iter(batches), None)
        names = batches.schema.names
    batch = first if first is not None else pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(names), names)
    return [
        _plan_csv_column(name, batch.column(index), _declared_type(reader.declared.get(name)) or types[index])
        for name, index in column_indices(names).items()
    ]


def _declared_type(kind: Kind | None) -> pa.DataType | None:
    """The type that cells of a column of a declared kind are parsed as; None if it was not declared."""
    return None if kind is None else kind.arrow_type if isinstance(kind, Tensor) and not kind.shape else pa.string()


def _widened(type: pa.DataType) -> pa.DataType:
    """The column type, given the type inferred from the first rows."""
    if pa.types.is_timestamp(type) and type.unit == "s":
        return pa.timestamp("us", type.tz)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_timestamp, pa.types.is_date)
    return type if any(is_one(type) for is_one in plain) else pa.string()


def _plan_csv_column(name: str, values: pa.Array, type: pa.DataType) -> ColumnPlan:
    parsed, errors = _parsed(values, type)
    if errors:
        type = pa.string()
        parsed, _ = _parsed(values, type)
    [inferred] = infer_schema({"column": parsed})
    nullable = inferred.nullable and type != pa.string()
    column = Column(inferred.kind, nullable=True) if nullable else None
    return ColumnPlan(name, partial(_parsed, type=type), type, column)


def _parsed(array: pa.Array, type: pa.DataType) -> Converted:
    text, _ = cast_to(array, pa.string())
    invalid = np.flatnonzero(np.asarray(pc.match_substring(text, _PLACEHOLDER)))
    errors = dict.fromkeys(invalid.tolist(), "has bytes that are not UTF-8")
    if type == pa.string():
        return text, errors
    text = pc.ascii_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, value_set=_null_markers()), pa.scalar(None, pa.string()), text)
    values, cast_errors = cast_to(text, type)
    return values, errors | cast_errors


def _scan_csv(reader: SourceReader, file: ObjectInfo) -> Iterator[RecordBlock | Reject]:
    bad: deque[tuple[int, str]] = deque()
    line = 2
    with _csv_reader(reader, file, bad, parsed=False) as batches:
        for batch in batches:
            start = 0
            while bad and bad[0][0] <= line + len(batch) - start:
                number, reason = bad.popleft()
                if number > line:
                    yield RecordBlock(line, batch.slice(start, number - line))
                    start += number - line
                yield Reject(f"{file.key}:{number}", reason)
                line = number + 1
            if start < len(batch):
                yield RecordBlock(line, batch.slice(start))
                line += len(batch) - start
    yield from (Reject(f"{file.key}:{number}", reason) for number, reason in bad)


@contextmanager
def _csv_reader(
    reader: SourceReader, file: ObjectInfo, bad: deque[tuple[int, str]], *, parsed: bool
) -> Iterator[pacsv.CSVStreamingReader]:
    """Batches of rows, parsed or as text; rows with a wrong number of values are appended to `bad` by row number."""

    def reject(row: pacsv.InvalidRow) -> str:
        bad.append((row.number, f"has {row.actual_columns} values, and the header has {row.expected_columns} names"))
        return "skip"

    with closing(io.BufferedReader(_ValidText(reader, file), BUFFER_BYTES)) as text:
        names, delimiter = _parse_header(text.peek(1).decode(), extension(file.key))
        types = {} if parsed else dict.fromkeys(names, pa.string())
        with pacsv.open_csv(
            pa.PythonFile(text, mode="r"),
            pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject),
            pacsv.ConvertOptions(column_types=types),
        ) as batches:
            yield batches


def _parse_header(head: str, ending: str) -> tuple[list[str], str]:
    """The column names and the delimiter; raises `DamagedFileError`."""
    lines = [line for line in io.StringIO(head.removeprefix("\ufeff"), newline="") if line.strip()]
    if not lines:
        raise DamagedFileError("has no header line")
    delimiter = "\t" if ending.startswith(".tsv") else max(_DELIMITERS, key=lines[0].count)
    try:
        names = next(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise DamagedFileError(f"has no header line: {error}") from None
    if any(_PLACEHOLDER in name for name in names):
        raise DamagedFileError("has a header line that is not UTF-8; convert the file to UTF-8")
    return names, delimiter


@dataclass(frozen=True)
class _JsonLines(SourceScan):
    """The scan of JSON lines."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Mapping[str, str]
    """JSON keys to columns."""
    ignores_others: bool = False
    """Whether other keys are ignored."""

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        return line_rows(reader, files, self._row)

    def _row(self, name: str, line: bytes) -> Row | Reject:
        found = _object(line)
        if isinstance(found, str):
            return Reject(name, found)
        if not self.ignores_others and not found.keys() <= self.names.keys():
            extra = [key for key, value in found.items() if key not in self.names and value is not None]
            if extra:
                return Reject(name, f"has {extra[0]!r}, a key that none of the first lines has")
        return Row(name, {column: found.get(key) for key, column in self.names.items()})


def _open_jsonl(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    lines = [file for file in files if extension(file.key) in _JSONL]
    found = lines or data_files(reader, files, (*_JSONL, *_JSON))
    first: list[dict[str, Any]] = []
    reason = "they are empty"
    for file in evenly_spaced(found, _SAMPLED_FILES):
        try:
            for number, value in _first_objects(reader, file):
                if isinstance(value, str):
                    reason = f"{file.key}:{number} {value}"
                else:
                    first.append(value)
        except (SourceChangedError, RejectedFileError, *UNREADABLE) as error:
            reason = f"{file.key} cannot be read: {error}"
    if not first:
        raise InvalidInputError(f"the first lines of the files in {reader.store.uri} are not JSON objects: {reason}")
    names: dict[str, str] = {}
    for key in dict.fromkeys(key for value in first for key in value):
        names[key] = column_name(key, names.values())
    names = {key: name for key, name in names.items() if reader.selects(name)} or names
    columns = {name: _json_column(name, [value.get(key) for value in first]) for key, name in names.items()}
    return _JsonLines(found, columns, names, reader.columns is not None)


def _json_column(name: str, values: Sequence[Any]) -> Column:
    present = [value for value in values if value is not None]
    return Column(_json_kind(name, present), nullable=len(present) < len(values))


def _json_kind(name: str, values: Sequence[Any]) -> Kind:
    try:
        [inferred] = infer_schema({"column": values})
    except InvalidInputError:  # mixed types, or no value
        return Json()
    kind = inferred.kind
    if isinstance(kind, Tensor) and kind.shape == (None,) and kind.element.logical.kind == "f" and is_vector_name(name):
        lengths = {len(value) for value in values}
        kind = Embedding(lengths.pop()) if len(lengths) == 1 and 0 not in lengths else kind
    return kind if not isinstance(kind, Tensor | List) or _accepts(kind, values) else Json()


def _accepts(kind: Kind, values: Sequence[Any]) -> bool:
    try:
        kind.to_array(values)
    except BadValueError:
        return False
    return True


def _first_objects(reader: SourceReader, file: ObjectInfo) -> Iterator[tuple[int, dict[str, Any] | str]]:
    size = 0
    for count, (number, line) in enumerate(read_lines(reader, file)):
        size += len(line or b"")
        if count and (count >= _SAMPLED_LINES or size > _SAMPLED_BYTES):
            return
        yield number, too_long() if line is None else _object(line)


def _object(line: bytes) -> dict[str, Any] | str:
    try:
        found = parse_json(line)
    except SampleError as error:
        return f"is {error}"
    return (
        found
        if isinstance(found, dict)
        else f"is a {type(found).__name__} and not an object; write one object in each line"
    )


CSV = Source(
    "csv",
    "CSV and TSV files, plain or compressed",
    _CSV,
    partial(all_end_in, endings=_CSV),
    _open_csv,
    may_be_empty=True,
)
JSONL = Source(
    "jsonl",
    "JSON lines, plain or compressed",
    _JSONL,
    lambda listing: all_end_in(listing, _JSONL) or all_end_in(listing, _JSON),
    _open_jsonl,
    may_be_empty=True,
)
