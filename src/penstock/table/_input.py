"""What users append, in whatever form, as batches of columns of bounded size."""

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
from penstock.format import INLINE_BYTES

Column: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pa.Array
Appendable: TypeAlias = Mapping[str, Any] | pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[Any]

_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20
_OPEN_FILE_BYTES = 1 << 20
"""What an open file is taken for; nobody knows how long it is."""
_ROWS, _TABLES = (dict, Mapping), (pa.RecordBatch, pa.Table)
_ARRAYS, _TEXTS = (np.ndarray, memoryview), (bytes, bytearray, str)  # unions would be made anew for each value

T = TypeVar("T")


@dataclass(frozen=True)
class ColumnBatch:
    """Some rows, column by column."""

    columns: Mapping[str, Column]
    rows: int
    first_row: int = 0
    """How many rows of the same append came before."""
    gaps: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Columns that some of these rows do not mention, and which rows."""


def column_batches(data: Appendable) -> Iterator[ColumnBatch]:
    """Cut what was given into batches; what is neither columns nor rows is refused."""
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
    for end in _ends(list(data.values()), next(iter(lengths.values()), 0)):
        yield ColumnBatch({name: _slice(values, start, end) for name, values in data.items()}, end - start)
        start = end


def _from_arrow(data: pa.Table | pa.RecordBatch) -> Iterator[ColumnBatch]:
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    if len(set(table.schema.names)) < len(table.schema.names):
        raise InvalidInputError("the Arrow table has two columns of one name")
    for batch in table.to_batches(max_chunksize=max(1, _BATCH_BYTES // max(1, table.nbytes // max(1, len(table))))):
        yield ColumnBatch(dict(zip(batch.schema.names, batch.columns, strict=True)), len(batch))


def _from_rows(rows: Iterator[Any]) -> Iterator[ColumnBatch]:
    waiting: list[Mapping[str, Any]] = []
    waiting_bytes, number = 0, 0
    for row in rows:
        if isinstance(row, _TABLES):
            if waiting:
                yield _as_columns(waiting)
                waiting, waiting_bytes = [], 0
            yield from _from_arrow(row)
            number += len(row)
            continue
        if not isinstance(row, _ROWS):
            raise InvalidInputError(f"row {number}: expected a dictionary, got {type(row).__name__}")
        waiting.append(row)
        number += 1
        waiting_bytes += sum(map(_size, row.values()))
        if len(waiting) == _BATCH_ROWS or waiting_bytes >= _BATCH_BYTES:
            yield _as_columns(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _as_columns(waiting)


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
    gaps = {name: np.array([name not in row for row in rows]) for name in names}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return ColumnBatch(columns, len(rows), gaps={name: gap for name, gap in gaps.items() if gap.any()})


def _slice(values: Any, start: int, end: int) -> Column:
    if isinstance(values, pa.ChunkedArray):
        part = values.slice(start, end - start).combine_chunks()
        return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
    if isinstance(values, pa.Array):
        return values.slice(start, end - start)
    return values[start:end]


def _ends(columns: Sequence[Any], total: int) -> Iterator[int]:
    """Where batches of the usual size end; values of a kind that differ in size are looked at one by one."""
    even = [values for values in columns if _is_even(values)]
    uneven = [values for values in columns if not _is_even(values)]
    width = sum(values.nbytes // max(1, total) for values in even)
    if not uneven:
        step = max(1, _BATCH_BYTES // max(1, width))
        yield from (min(start + step, total) for start in range(0, total, step))
        return
    rows, size = 0, 0
    for end, row in enumerate(zip(*uneven, strict=True), 1):
        rows, size = rows + 1, size + width + sum(map(_size, row))
        if rows == _BATCH_ROWS or size >= _BATCH_BYTES or end == total:
            yield end
            rows, size = 0, 0


def _is_even(values: Any) -> bool:
    return isinstance(values, pa.Array | pa.ChunkedArray) or (isinstance(values, np.ndarray) and values.dtype != object)


def _size(value: Any) -> int:
    """About how many bytes a value takes when it is read."""
    if isinstance(value, _ARRAYS):
        return value.nbytes
    if isinstance(value, _TEXTS):
        return len(value)
    if isinstance(value, PathLike):
        return _file_size(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return _OPEN_FILE_BYTES if hasattr(value, "read") else 64


def _file_size(path: PathLike[str]) -> int:
    try:
        return min(os.stat(path).st_size, INLINE_BYTES)
    except OSError:  # it is refused, by its row, when it is read
        return 64
