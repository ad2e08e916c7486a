"""What users append, in whatever form, as batches of columns of bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError

Column: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pa.Array
Appendable: TypeAlias = Mapping[str, Any] | pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[Any]

_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True)
class ColumnBatch:
    """Some rows, column by column."""

    first_row: int
    """How many rows of the same append came before."""
    columns: Mapping[str, Column]
    rows: int


def column_batches(data: Appendable) -> Iterator[ColumnBatch]:
    """Cut what was given into batches; what is neither columns nor rows is refused."""
    first = 0
    for columns, rows in _batches(data):
        if rows:
            yield ColumnBatch(first, columns, rows)
        first += rows


def _batches(data: Any) -> Iterator[tuple[Mapping[str, Column], int]]:
    if type(data).__module__.startswith("pandas."):
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, Mapping):
        yield from _from_columns(data)
    elif isinstance(data, pa.Table | pa.RecordBatch):
        yield from _from_arrow(data)
    elif isinstance(data, pa.RecordBatchReader):
        for batch in data:
            yield from _from_arrow(batch)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | np.ndarray):
        yield from _from_rows(iter(data))
    else:
        raise InvalidInputError(
            "append takes a dictionary of columns, a list or generator of rows (dictionaries), an Arrow table or"
            f" reader, or a data frame, not {type(data).__name__}"
        )


def _from_columns(data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Column], int]]:
    lengths = {}
    for name, values in data.items():
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise InvalidInputError(
                f"column {name!r}: expected a list or an array with a value per row, got {type(values).__name__}"
            )
        lengths[name] = len(values)
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(
            "the columns have different numbers of rows: " + ", ".join(f"{k!r} {v}" for k, v in lengths.items())
        )
    total = next(iter(lengths.values()), 0)
    step = max(1, min((_rows_per_batch(values) for values in data.values()), default=1))
    for start in range(0, total, step):
        end = min(start + step, total)
        yield {name: _slice(values, start, end) for name, values in data.items()}, end - start


def _from_arrow(data: pa.Table | pa.RecordBatch) -> Iterator[tuple[Mapping[str, Column], int]]:
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    if len(set(table.schema.names)) < len(table.schema.names):
        raise InvalidInputError("the Arrow table has two columns of one name")
    for batch in table.to_batches(max_chunksize=max(1, _BATCH_BYTES // max(1, table.nbytes // max(1, len(table))))):
        yield dict(zip(batch.schema.names, batch.columns, strict=True)), len(batch)


def _from_rows(rows: Iterator[Any]) -> Iterator[tuple[Mapping[str, Column], int]]:
    waiting: list[Mapping[str, Any]] = []
    waiting_bytes, number = 0, 0
    for row in rows:
        if isinstance(row, pa.RecordBatch | pa.Table):
            if waiting:
                yield _as_columns(waiting), len(waiting)
                waiting, waiting_bytes = [], 0
            yield from _from_arrow(row)
            number += len(row)
            continue
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"row {number}: expected a dictionary, got {type(row).__name__}")
        waiting.append(row)
        number += 1
        waiting_bytes += sum(_size(value) for value in row.values())
        if len(waiting) == _BATCH_ROWS or waiting_bytes >= _BATCH_BYTES:
            yield _as_columns(waiting), len(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _as_columns(waiting), len(waiting)


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Column]:
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _slice(values: Any, start: int, end: int) -> Column:
    if isinstance(values, pa.ChunkedArray):
        part = values.slice(start, end - start).combine_chunks()
        return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part
    if isinstance(values, pa.Array):
        return values.slice(start, end - start)
    return values[start:end]


def _rows_per_batch(values: Any) -> int:
    """How many rows of a column make a batch of the usual size."""
    if len(values) == 0:
        return 1
    if isinstance(values, pa.Array | pa.ChunkedArray) or (isinstance(values, np.ndarray) and values.dtype.kind != "O"):
        return int(_BATCH_BYTES // max(1, values.nbytes // len(values)))
    sample = values[: min(len(values), 64)]
    return min(_BATCH_ROWS, int(_BATCH_BYTES // max(1, max(_size(value) for value in sample))))


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str | list) else 64
