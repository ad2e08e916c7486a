"""Tabular files: which files, which columns, and their rows in batches of bounded size.

The first readable file decides the columns. A later file may lack columns, which are then null, and may have
other types that can be cast without loss; a file with additional columns is rejected as a whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, SourceChangedError
from penstock.format import ColumnLike
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import (
    Reject,
    RejectedFileError,
    RowBatch,
    SourceItem,
    SourceListing,
    SourceScan,
    extension,
)
from penstock.ingest.sources._arrow_columns import ColumnPlan, features_of, plan_column
from penstock.ingest.sources._limits import UNREADABLE
from penstock.ingest.sources._values import column_name
from penstock.storage import ObjectInfo

BATCH_BYTES = 16 << 20

_SIDECARS = ("", ".md", ".txt", ".json", ".yaml", ".yml", ".html", ".pdf", ".crc", ".sha256", ".md5")
_SIDECAR_BYTES = 4 << 20
_PANDAS_INDEX = "__index_level_"
_MAX_TRIED = 100
_MAX_LISTED = 5

T = TypeVar("T")


class RecordBlock(NamedTuple):
    """Consecutive rows of a file."""

    first_row: int
    """Index of the first row in the file."""
    batch: pa.RecordBatch


Scan: TypeAlias = Callable[[SourceReader, ObjectInfo], Iterator[RecordBlock | Reject]]
"""Yields the rows of one file in order, before conversion."""


@dataclass(frozen=True)
class Tabular(SourceScan):
    """The scan of tabular files."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    plans: tuple[ColumnPlan, ...]
    scan: Scan
    notes: Sequence[str] = ()

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file in files:
            yield from self._rows(reader, file)

    def _rows(self, reader: SourceReader, file: ObjectInfo) -> Iterator[SourceItem]:
        row = 0
        started = False
        try:
            for item in self.scan(reader, file):
                for valid in _split_invalid(file.key, item):
                    if isinstance(valid, Reject):
                        yield valid
                        continue
                    if not started and (reason := _mismatch(self.plans, valid.batch, reader)) is not None:
                        yield Reject(file.key, reason)
                        return
                    for block in _split_by_size(valid):
                        for found in _converted(self.plans, file.key, block):
                            started = True
                            yield found
                        row = block.first_row + len(block.batch)
        except SourceChangedError as error:
            if started:  # rows of the old version were yielded: the whole part must be retried
                raise
            yield Reject(file.key, str(error))
        except UNREADABLE as error:
            if started:
                yield Reject(f"{file.key}:{row}", f"cannot be read from this row on: {error}")
            else:  # under the name of the file, so that a later run reads it again once it is repaired
                yield Reject(file.key, f"cannot be read: {error}")


def open_tabular(reader: SourceReader, files: Sequence[ObjectInfo], plans: Sequence[ColumnPlan], scan: Scan) -> Tabular:
    """A scan of files with the selected ones of the given columns."""
    plans = [plan for plan in plans if reader.selects(plan.name)] or plans
    columns = {plan.name: plan.column for plan in plans if plan.column is not None}
    return Tabular(files, columns, tuple(plans), scan, [plan.note for plan in plans if plan.note is not None])


def plan_columns(sample: pa.RecordBatch, nulls: frozenset[str] = frozenset()) -> list[ColumnPlan]:
    """Decide the columns from the first rows of a file and its metadata; `nulls` names columns with nulls."""
    sample = _without(sample, _invalid_rows(sample))
    features, names = features_of(sample.schema), sample.schema.names
    plans = []
    for name, index in column_indices(names).items():
        plan = plan_column(
            name, sample.column(index), feature=features.get(names[index]), has_nulls=names[index] in nulls
        )
        renamed = f"column {names[index]!r} of the source is called {name!r}" if name != names[index] else None
        plans.append(replace(plan, note="; ".join(filter(None, [renamed, plan.note])) or None))
    return plans


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows; unlike `pa.array([], type)`, `pa.nulls` supports every type."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def column_indices(names: Sequence[str]) -> dict[str, int]:
    """Column names in the table to column indices in the file; the index columns of pandas are excluded."""
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name.startswith(_PANDAS_INDEX):
            found[column_name(name, found)] = index
    return found


def data_files(reader: SourceReader, files: Iterable[ObjectInfo], endings: Sequence[str]) -> list[ObjectInfo]:
    """The files with one of these endings; raises `InvalidInputError` if there are none."""
    found = [file for file in files if extension(file.key) in endings]
    if not found:
        raise InvalidInputError(f"no file in {reader.store.uri} ends in {' or '.join(endings)}")
    return found


def all_end_in(listing: SourceListing, endings: Sequence[str]) -> bool:
    """Whether all files have one of these endings; small sidecar files, such as a README, do not count."""
    others = [name for name in listing.sizes if name not in endings]
    sidecars = all(name in _SIDECARS and max(listing.sizes[name]) <= _SIDECAR_BYTES for name in others)
    return listing.has(endings) and sidecars


def first_readable(
    reader: SourceReader, files: Sequence[ObjectInfo], read: Callable[[SourceReader, ObjectInfo], T]
) -> T:
    """The result of `read` for the first readable file; raises `InvalidInputError` if there is none."""
    first_error = ""
    for file in files[:_MAX_TRIED]:
        try:
            return read(reader, file)
        except (SourceChangedError, RejectedFileError, *UNREADABLE) as error:
            first_error = first_error or f"{reader.uri(file.key)}: {error}"
    raise InvalidInputError(
        f"none of the first {min(len(files), _MAX_TRIED)} files can be read; the first, {first_error}"
    )


def _mismatch(plans: Sequence[ColumnPlan], batch: pa.RecordBatch, reader: SourceReader) -> str | None:
    """Why the rows of a file do not match the columns of the table, or None."""
    known = {plan.name: plan for plan in plans}
    indices = {name: at for name, at in column_indices(batch.schema.names).items() if reader.selects(name)}
    if extra := [name for name in indices if name not in known]:
        names = ", ".join(map(repr, extra[:_MAX_LISTED])) + (", …" if len(extra) > _MAX_LISTED else "")
        return f"it has columns that the first file lacks: {names}; select columns, or ingest it into another table"
    for name, index in indices.items():
        try:
            known[name].convert(batch.column(index).slice(0, 0))
        except (pa.ArrowException, TypeError):
            types = f"{batch.schema.field(index).type}, which cannot be cast to {known[name].type}"
            return f"its column {name!r} is {types}, the type in the first file; ingest it into a separate table"
    return None


def _split_by_size(block: RecordBlock) -> Iterator[RecordBlock]:
    """Blocks whose decoded values take about `BATCH_BYTES` each."""
    rows = len(block.batch)
    row_bytes = block.batch.nbytes // max(1, rows) + sum(map(_longest_dictionary_value, block.batch.columns))
    step = max(1, BATCH_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield RecordBlock(block.first_row + start, block.batch.slice(start, step))


def _longest_dictionary_value(column: pa.Array) -> int:
    """Bytes of the longest value in the dictionary of a column, to which any number of rows may refer."""
    if not isinstance(column, pa.DictionaryArray) or not len(column.dictionary):
        return 0
    try:
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    except pa.ArrowNotImplementedError:
        return 0


def _converted(plans: Sequence[ColumnPlan], key: str, block: RecordBlock) -> Iterator[RowBatch | Reject]:
    batch, invalid = _convert(plans, block.batch)
    for good in _split_rows(key, RecordBlock(block.first_row, batch), invalid):
        if isinstance(good, Reject):
            yield good
        else:
            yield RowBatch(f"{key}[{good.first_row}:{good.first_row + len(good.batch)}]", good.batch)


def _split_invalid(key: str, item: RecordBlock | Reject) -> Iterator[RecordBlock | Reject]:
    """Rows that are safe to access: Arrow does not check the offsets inside a batch."""
    return iter([item]) if isinstance(item, Reject) else _split_rows(key, item, _invalid_rows(item.batch))


def _split_rows(key: str, block: RecordBlock, invalid: Mapping[int, str]) -> Iterator[RecordBlock | Reject]:
    """The valid rows as blocks and the invalid ones as rejects, in order."""
    start = 0
    for row in sorted(invalid):
        if row > start:
            yield RecordBlock(block.first_row + start, block.batch.slice(start, row - start))
        yield Reject(f"{key}:{block.first_row + row}", invalid[row])
        start = row + 1
    if start < len(block.batch):
        yield RecordBlock(block.first_row + start, block.batch.slice(start))


def _invalid_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """Row index to reason, for rows whose bytes are invalid, such as text that is not UTF-8."""
    if _validation_error(batch) is None:
        return {}
    rows = ((row, _validation_error(batch.slice(row, 1))) for row in range(len(batch)))
    return {row: error for row, error in rows if error is not None}


def _without(batch: pa.RecordBatch, invalid: Mapping[int, str]) -> pa.RecordBatch:
    if not invalid:
        return batch
    good = [batch.slice(row, 1) for row in range(len(batch)) if row not in invalid]
    columns = pa.Table.from_batches(good, batch.schema).combine_chunks().columns
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in columns], schema=batch.schema)


def _validation_error(batch: pa.RecordBatch) -> str | None:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return f"has invalid values: {error}"
    return None


def _convert(plans: Sequence[ColumnPlan], batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    indices = column_indices(batch.schema.names)
    arrays: list[pa.Array] = []
    invalid: dict[int, str] = {}
    for plan in plans:
        if plan.name not in indices:
            arrays.append(pa.nulls(len(batch), plan.type))
            continue
        array, errors = plan.convert(batch.column(indices[plan.name]))
        arrays.append(array)
        invalid |= {row: f"column {plan.name!r} {reason}" for row, reason in errors.items()}
    return pa.RecordBatch.from_arrays(arrays, names=[plan.name for plan in plans]), invalid
