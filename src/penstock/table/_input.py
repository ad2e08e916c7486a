"""Convert any form of appended rows to column batches of bounded size."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import MAX_INLINE_BYTES

Column: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pa.Array
Appendable: TypeAlias = Mapping[str, Any] | pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[Any]

_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20
_OPEN_FILE_BYTES = 1 << 20
"""Assumed size of an open file, whose length is unknown."""
_ROW_TYPES, _TABLE_TYPES = (dict, Mapping), (pa.RecordBatch, pa.Table)
_ARRAY_TYPES, _TEXT_TYPES = (np.ndarray, memoryview), (bytes, bytearray, str)  # a `|` would build a union per value

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnBatch:
    """Some rows, column by column."""

    columns: Mapping[str, Column]
    rows: int
    first_row: int = 0
    """Index of the first row in the append."""
    absent: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """By column: the mask of rows that do not have the key."""


def column_batches(data: Appendable) -> Iterator[ColumnBatch]:
    """Split appended data into batches; raises `InvalidInputError` for data that is neither columns nor rows."""
    first = 0
    for batch in _batches(data):
        if batch.rows:
            yield replace(batch, first_row=first)
        first += batch.rows


def _batches(data: Any) -> Iterator[ColumnBatch]:
    if _is_pandas(data):
        data = _from_pandas(lambda: pa.Table.from_pandas(data, preserve_index=False))
    if isinstance(data, Mapping):
        yield from _from_columns(data)
    elif isinstance(data, pa.Table | pa.RecordBatch):
        yield from _from_arrow(data)
    elif isinstance(data, pa.RecordBatchReader):
        for batch in data:
            yield from _from_arrow(batch)
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _batches(pa.RecordBatchReader.from_stream(data))
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | np.ndarray):
        yield from _from_rows(iter(data))
    else:
        raise InvalidInputError(
            "append takes a dictionary of columns, a list or generator of rows (dictionaries), an Arrow table or"
            f" reader, or a data frame, not {type(data).__name__}"
        )


def _from_columns(data: Mapping[str, Any]) -> Iterator[ColumnBatch]:
    lengths = {}
    data = {name: _from_series(values) if _is_pandas(values) else values for name, values in data.items()}
    for name, values in data.items():
        if isinstance(values, str | bytes | Mapping | Set) or not hasattr(values, "__len__"):
            raise InvalidInputError(
                f"column {name!r}: expected a list or an array with a value per row, got {type(values).__name__}"
            )
        lengths[name] = len(values)
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(
            "the columns have different numbers of rows: " + ", ".join(f"{k!r} {v}" for k, v in lengths.items())
        )
    start = 0
    for end in _batch_ends(list(data.values()), next(iter(lengths.values()), 0)):
        yield ColumnBatch({name: _slice(values, start, end) for name, values in data.items()}, end - start)
        start = end


def _from_arrow(data: pa.Table | pa.RecordBatch) -> Iterator[ColumnBatch]:
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    if len(set(table.schema.names)) < len(table.schema.names):
        raise InvalidInputError("the Arrow table has two columns of one name; rename one")
    for batch in table.to_batches(max_chunksize=max(1, _BATCH_BYTES // max(1, table.nbytes // max(1, len(table))))):
        yield ColumnBatch(dict(zip(batch.schema.names, batch.columns, strict=True)), len(batch))


def _from_rows(rows: Iterator[Any]) -> Iterator[ColumnBatch]:
    buffered: list[Mapping[str, Any]] = []
    buffered_bytes, index = 0, 0
    for row in rows:
        if isinstance(row, _TABLE_TYPES):
            if buffered:
                yield _as_columns(buffered)
                buffered, buffered_bytes = [], 0
            yield from _from_arrow(row)
            index += len(row)
            continue
        if not isinstance(row, _ROW_TYPES):
            raise InvalidInputError(f"row {index}: expected a dictionary, got {type(row).__name__}")
        buffered.append(row)
        index += 1
        buffered_bytes += sum(map(_estimate_bytes, row.values()))
        if len(buffered) == _BATCH_ROWS or buffered_bytes >= _BATCH_BYTES:
            yield _as_columns(buffered)
            buffered, buffered_bytes = [], 0
    if buffered:
        yield _as_columns(buffered)


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas"


def _from_pandas(convert: Callable[[], T]) -> T:
    try:
        return convert()
    except pa.ArrowException as error:
        raise InvalidInputError(f"pandas data of mixed or unknown types: {error}; convert it first") from None


def _from_series(values: Any) -> Any:
    if not hasattr(values, "index"):
        return values
    return _from_pandas(lambda: pa.array(values, from_pandas=True))


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> ColumnBatch:
    names = dict.fromkeys(chain.from_iterable(rows))
    absent = {name: np.array([name not in row for row in rows]) for name in names}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return ColumnBatch(columns, len(rows), absent={name: mask for name, mask in absent.items() if mask.any()})


def _slice(values: Any, start: int, end: int) -> Column:
    if isinstance(values, pa.ChunkedArray):
        part = values.slice(start, end - start).combine_chunks()
        return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
    if isinstance(values, pa.Array):
        return values.slice(start, end - start)
    return values[start:end]


def _batch_ends(columns: Sequence[Any], total: int) -> Iterator[int]:
    """Row indices at which batches end; objects, which may differ in size, are measured one by one."""
    arrays = [values for values in columns if _is_array(values)]
    objects = [values for values in columns if not _is_array(values)]
    width = sum(values.nbytes // max(1, total) for values in arrays)
    if not objects:
        step = max(1, _BATCH_BYTES // max(1, width))
        yield from (min(start + step, total) for start in range(0, total, step))
        return
    rows, size = 0, 0
    for end, row in enumerate(zip(*objects, strict=True), 1):
        rows, size = rows + 1, size + width + sum(map(_estimate_bytes, row))
        if rows == _BATCH_ROWS or size >= _BATCH_BYTES or end == total:
            yield end
            rows, size = 0, 0


def _is_array(values: Any) -> bool:
    return isinstance(values, pa.Array | pa.ChunkedArray) or (isinstance(values, np.ndarray) and values.dtype != object)


def _estimate_bytes(value: Any) -> int:
    """Approximate bytes of a value in memory."""
    if isinstance(value, _ARRAY_TYPES):
        return value.nbytes
    if isinstance(value, _TEXT_TYPES):
        return len(value)
    if isinstance(value, PathLike):
        return _file_size(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return _OPEN_FILE_BYTES if hasattr(value, "read") else 64


def _file_size(path: PathLike[str]) -> int:
    try:
        return min(os.stat(path).st_size, MAX_INLINE_BYTES)
    except OSError:  # encoding it raises an error that names the row
        return 64
