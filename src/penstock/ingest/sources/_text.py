"""Rows written as text: CSV and TSV with a line of names, and JSON lines; as they are, or in gzip.

CSV: the types are those that Arrow infers from the first megabytes of the first file, and hold for all files, so that
shards agree. Every value is read as text and then parsed, so that a value is the same whatever else is in its file, and
one that does not parse costs its own row only. In columns that are not text, what usually stands for a missing value
(nothing, NA, null, …) is one. Rows are counted from 1, which is the line of names. The separator is a tab in .tsv
files, else whichever of comma, semicolon, tab and bar the line of names has most of.

JSON lines: a column is of the kind that fits the first lines of some files, and of JSON where none does. A line with a
key that none of those has is rejected. Lists of floats whose name speaks of an embedding or a vector, and which all
have one length in those lines, become embeddings of that length in float32; a later line with another is rejected.
"""

import codecs
import csv
import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.errors import InvalidInputError, SampleError, SourceChanged
from penstock.format import Column, ColumnLike, infer_schema
from penstock.format.kinds import BadValue, Embedding, Json, Kind, List, Tensor
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Reading, Reject, Row, Source, ending, spread
from penstock.ingest.sources._arrow_columns import ColumnPlan, Converted, cast_to, is_vector_name
from penstock.ingest.sources._expand import Damaged, Expanded
from penstock.ingest.sources._tabular import (
    UNREADABLE,
    Block,
    all_end_in,
    column_places,
    data_files,
    first_readable,
    open_tabular,
)
from penstock.ingest.sources._values import column_name, parse_json
from penstock.storage import ObjectInfo

_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_BLOCK_BYTES = 2 << 20
"""A row of CSV must be shorter; Arrow reads 32 blocks ahead, whatever one wishes."""
_BUFFER_BYTES = 1 << 20
_SEPARATORS = ",;\t|"
_MARK = "\ufdd0"
"""A code point that never stands for a character."""
_MARKING = "penstock-mark"
codecs.register_error(_MARKING, lambda error: (_MARK, error.end if isinstance(error, UnicodeDecodeError) else 0))
_MISSING = pa.array(pacsv.ConvertOptions().null_values)
_MAX_LINE_BYTES = 64 << 20
_SAMPLED_FILES, _SAMPLED_LINES, _SAMPLED_BYTES = 8, 1024, 4 << 20


class _Raw(io.RawIOBase):
    """An object as it is, or as what it unpacks to."""

    def __init__(self, bucket: Bucket, file: ObjectInfo) -> None:
        packed = file.key.lower().endswith(".gz")
        self._source = Expanded(bucket, file, "gzip") if packed else bucket.open(file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()

    def _read(self, size: int) -> bytes:
        return self._source.read(size)


class _Marked(_Raw):
    """Text with a mark in place of bytes that are not UTF-8: Arrow has no way to speak of them, and goes on without."""

    def __init__(self, bucket: Bucket, file: ObjectInfo) -> None:
        super().__init__(bucket, file)
        self._decoder = codecs.getincrementaldecoder("utf-8")(_MARKING)

    def _read(self, size: int) -> bytes:
        text = ""
        data = b" "
        while data and not text:  # what was read may be the beginning of a character
            data = self._source.read(max(1, size // len(_MARK.encode()) - 4))
            text = self._decoder.decode(data, final=not data)
        return text.encode()


def _open_csv(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    found = data_files(bucket, files, _CSV)
    return open_tabular(found, first_readable(bucket, found, _plan_csv), _scan_csv)


def _plan_csv(bucket: Bucket, file: ObjectInfo) -> list[ColumnPlan]:
    with _csv_reader(bucket, file, deque(), parsed=True) as reader:
        types = [_settled(type) for type in reader.schema.types]
    with _csv_reader(bucket, file, deque(), parsed=False) as reader:
        first = next(iter(reader), None)
        names = reader.schema.names
    batch = first if first is not None else pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(names), names)
    return [_plan_csv_column(name, batch.column(at), types[at]) for name, at in column_places(names).items()]


def _settled(type: pa.DataType) -> pa.DataType:
    """A type for all rows where the first ones have this."""
    if pa.types.is_timestamp(type) and type.unit == "s":
        return pa.timestamp("us", type.tz)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_timestamp, pa.types.is_date)
    return type if any(is_one(type) for is_one in plain) else pa.string()


def _plan_csv_column(name: str, values: pa.Array, type: pa.DataType) -> ColumnPlan:
    parsed, flaws = _parsed(values, type)
    if flaws:
        type = pa.string()
        parsed, _ = _parsed(values, type)
    [inferred] = infer_schema({"column": parsed})
    nullable = inferred.nullable and type != pa.string()
    column = Column(inferred.kind, nullable=True) if nullable else None
    return ColumnPlan(name, partial(_parsed, type=type), type, column)


def _parsed(array: pa.Array, type: pa.DataType) -> Converted:
    text, _ = cast_to(array, pa.string())
    marked = np.flatnonzero(np.asarray(pc.match_substring(text, _MARK)))
    flaws = dict.fromkeys(marked.tolist(), "holds bytes that are not UTF-8")
    if type == pa.string():
        return text, flaws
    text = pc.ascii_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, value_set=_MISSING), pa.scalar(None, pa.string()), text)
    values, more = cast_to(text, type)
    return values, flaws | more


def _scan_csv(bucket: Bucket, file: ObjectInfo) -> Iterator[Block | Reject]:
    bad: deque[tuple[int, str]] = deque()
    at = 2
    with _csv_reader(bucket, file, bad, parsed=False) as reader:
        for batch in reader:
            start = 0
            while bad and bad[0][0] <= at + len(batch) - start:
                number, reason = bad.popleft()
                if number > at:
                    yield Block(at, batch.slice(start, number - at))
                    start += number - at
                yield Reject(f"{file.key}:{number}", reason)
                at = number + 1
            if start < len(batch):
                yield Block(at, batch.slice(start))
                at += len(batch) - start
    yield from (Reject(f"{file.key}:{number}", reason) for number, reason in bad)


@contextmanager
def _csv_reader(
    bucket: Bucket, file: ObjectInfo, bad: deque[tuple[int, str]], *, parsed: bool
) -> Iterator[pacsv.CSVStreamingReader]:
    """The rows in batches, parsed or as they are; rows with too many or too few values go to `bad` by their numbers."""

    def refuse(row: pacsv.InvalidRow) -> str:
        bad.append((row.number, f"has {row.actual_columns} values where {row.expected_columns} are named"))
        return "skip"

    with closing(io.BufferedReader(_Marked(bucket, file), _BUFFER_BYTES)) as text:
        names, separator = _names(text.peek(1).decode(), ending(file.key))
        types = {} if parsed else dict.fromkeys(names, pa.string())
        with pacsv.open_csv(
            pa.PythonFile(text, mode="r"),
            pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse),
            pacsv.ConvertOptions(column_types=types),
        ) as reader:
            yield reader


def _names(head: str, ending: str) -> tuple[list[str], str]:
    """The names of the columns, and what separates them."""
    lines = [line for line in io.StringIO(head.removeprefix("\ufeff"), newline="") if line.strip()]
    if not lines:
        raise Damaged("has no line of names")
    separator = "\t" if ending.startswith(".tsv") else max(_SEPARATORS, key=lines[0].count)
    try:
        names = next(csv.reader(lines, delimiter=separator))
    except csv.Error as error:
        raise Damaged(f"has no line of names: {error}") from None
    if any(_MARK in name for name in names):
        raise Damaged("is not UTF-8, its line of names at least; convert it first")
    return names, separator


@dataclass(frozen=True)
class _JsonLines(Reading):
    """How JSON lines are read."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Mapping[str, str]
    """Keys of the lines, and the columns they go to."""

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        """See `Reading`."""
        for file in files:
            number = 0
            try:
                for number, found in _objects(bucket, file):
                    yield self._row(f"{file.key}:{number}", found)
            except SourceChanged as error:
                if number:  # half of a file that is no more: the part is done again as a whole
                    raise
                yield Reject(file.key, str(error))
            except UNREADABLE as error:
                name = f"{file.key}:{number + 1}" if number else file.key
                yield Reject(name, f"cannot be read from here on: {error}")

    def _row(self, name: str, found: dict[str, Any] | str) -> Row | Reject:
        if isinstance(found, str):
            return Reject(name, found)
        if not found.keys() <= self.names.keys():
            extra = [key for key, value in found.items() if key not in self.names and value is not None]
            if extra:
                return Reject(name, f"has {extra[0]!r}, which none of the first lines has")
        return Row(name, {column: found.get(key) for key, column in self.names.items()})


def _open_jsonl(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    found = data_files(bucket, files, _JSONL)
    first: list[dict[str, Any]] = []
    reason = "they are empty"
    for file in spread(found, _SAMPLED_FILES):
        try:
            for number, value in _first_objects(bucket, file):
                if isinstance(value, str):
                    reason = f"{file.key}:{number} {value}"
                else:
                    first.append(value)
        except (SourceChanged, *UNREADABLE) as error:
            reason = f"{file.key} cannot be read: {error}"
    if not first:
        raise InvalidInputError(f"the first lines of the files in {bucket.store.uri} are no JSON objects: {reason}")
    names: dict[str, str] = {}
    for key in dict.fromkeys(key for value in first for key in value):
        names[key] = column_name(key, names.values())
    columns = {name: _json_column(name, [value.get(key) for value in first]) for key, name in names.items()}
    return _JsonLines(found, columns, names)


def _json_column(name: str, values: Sequence[Any]) -> Column:
    present = [value for value in values if value is not None]
    return Column(_json_kind(name, present), nullable=len(present) < len(values))


def _json_kind(name: str, values: Sequence[Any]) -> Kind:
    try:
        [inferred] = infer_schema({"column": values})
    except InvalidInputError:  # of several types, or nothing yet
        return Json()
    kind = inferred.kind
    if isinstance(kind, Tensor) and kind.shape == (None,) and kind.element.logical.kind == "f" and is_vector_name(name):
        lengths = {len(value) for value in values}
        kind = Embedding(lengths.pop()) if len(lengths) == 1 and 0 not in lengths else kind
    return kind if not isinstance(kind, Tensor | List) or _takes(kind, values) else Json()


def _takes(kind: Kind, values: Sequence[Any]) -> bool:
    try:
        kind.to_array(values)
    except BadValue:
        return False
    return True


def _first_objects(bucket: Bucket, file: ObjectInfo) -> Iterator[tuple[int, dict[str, Any] | str]]:
    size = 0
    for count, (number, line) in enumerate(_lines(bucket, file)):
        size += len(line or b"")
        if count and (count >= _SAMPLED_LINES or size > _SAMPLED_BYTES):
            return
        yield number, _object(line)


def _objects(bucket: Bucket, file: ObjectInfo) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The numbers of lines, with what each says or what is wrong with it."""
    return ((number, _object(line)) for number, line in _lines(bucket, file))


def _object(line: bytes | None) -> dict[str, Any] | str:
    if line is None:
        return f"is longer than {_MAX_LINE_BYTES:,} bytes"
    try:
        found = parse_json(line)
    except SampleError as error:
        return f"is {error}"
    return found if isinstance(found, dict) else f"is a {type(found).__name__} and not an object with columns"


def _lines(bucket: Bucket, file: ObjectInfo) -> Iterator[tuple[int, bytes | None]]:
    """Lines by their numbers, empty ones left out; None for one that is too long to be held."""
    with closing(io.BufferedReader(_Raw(bucket, file), _BUFFER_BYTES)) as text:
        number = 0
        while line := text.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                _skip_line(text, line)
                yield number, None
                continue
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield number, line


def _skip_line(text: BinaryIO, begun: bytes) -> None:
    while begun and not begun.endswith(b"\n"):
        begun = text.readline(_BUFFER_BYTES)


CSV = Source("csv", "CSV and TSV files, plain or gzipped", partial(all_end_in, endings=_CSV), _open_csv)
JSONL = Source("jsonl", "JSON lines, plain or gzipped", partial(all_end_in, endings=_JSONL), _open_jsonl)
