"""Export rows as one file, in batches: Arrow, Parquet, CSV, JSON or JSON lines.

A hidden temporary file in the same folder is renamed to the target when it is complete.
"""

import csv
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.errors import AlreadyExistsError, InvalidInputError, StorageError
from penstock.format.kinds import Json, Linked

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 16
_LINKED_BATCH_ROWS = 64
"""Rows of a batch with linked values, whose sizes are not known."""
_FIRST_BATCH_ROWS = 16
FORMATS = (".arrow", ".parquet")
RESULT_FORMATS = (".parquet", ".arrow", ".csv", ".json", ".jsonl")


def check_target(to: Path, *, force: bool, formats: Sequence[str] = FORMATS) -> None:
    """Raise `InvalidInputError` or `AlreadyExistsError` for a file that cannot or must not be written."""
    if to.suffix not in formats:
        endings = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise InvalidInputError(f"{to} must end with {endings}, which selects the format")
    if not to.parent.is_dir():
        raise InvalidInputError(f"there is no folder {to.parent}; create it first")
    if to.is_dir():
        raise InvalidInputError(f"{to} is a folder; name a file")
    if to.exists() and not force:
        raise AlreadyExistsError(f"{to} exists already; choose another name, or overwrite it with --force")


def temporary_path(to: Path) -> Path:
    """A hidden path in the same folder, to write to first."""
    return to.with_name(f".{to.name}.{token_hex(4)}.part")


def export(dataset: penstock.Dataset, to: Path, temporary: Path, progress: Callable[[int], None]) -> None:
    """Write all rows; `progress` gets the number of rows written. Raises `StorageError` if writing fails."""
    size = batch_rows(dataset)
    groups = ((start, min(start + size, len(dataset))) for start in range(0, len(dataset), size))
    _write(dataset, groups, to, temporary, progress)


def export_view(view: penstock.View, to: Path, temporary: Path, progress: Callable[[int], None]) -> None:
    """Write the rows of a view, whose size is not known: batches grow to 32 MB. Raises `StorageError`."""
    _write(view, _Growing(len(view)), to, temporary, progress)


class _Growing:
    """Batches of about equal bytes, by the mean of those before."""

    def __init__(self, rows: int) -> None:
        self._rows, self._done, self._bytes = rows, 0, 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self._done < self._rows:
            size = _FIRST_BATCH_ROWS
            if self._done:
                size = max(1, min(_BATCH_ROWS, 4 * self._done, _BATCH_BYTES * self._done // max(1, self._bytes)))
            end = min(self._done + size, self._rows)
            yield self._done, end
            self._done = end

    def count(self, size: int) -> None:
        """Take note of the bytes of a batch."""
        self._bytes += size


def _write(
    view: penstock.View,
    groups: Iterable[tuple[int, int]],
    to: Path,
    temporary: Path,
    progress: Callable[[int], None],
) -> None:
    open_writer = _WRITERS[to.suffix]
    try:
        with open_writer(temporary, view) as write:
            for start, end in groups:
                table = view[start:end].to_arrow()
                if isinstance(groups, _Growing):
                    groups.count(table.nbytes)
                write(table)
                progress(end)
        temporary.replace(to)
    except OSError as error:
        raise StorageError(f"cannot write {to}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def batch_rows(dataset: penstock.Dataset) -> int:
    """Rows of a batch, from the average size of a row."""
    max_rows = _LINKED_BATCH_ROWS if any(isinstance(field.kind, Linked) for field in dataset.schema) else _BATCH_ROWS
    row_bytes = dataset.summary().bytes // max(1, len(dataset))
    return max(1, min(max_rows, _BATCH_BYTES // max(1, row_bytes)))


_Write = Callable[[pa.Table], None]


@contextmanager
def _parquet_writer(path: Path, view: penstock.View) -> Iterator[_Write]:
    with pq.ParquetWriter(path, _schema(view)) as file:
        yield file.write_table


@contextmanager
def _arrow_writer(path: Path, view: penstock.View) -> Iterator[_Write]:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _schema(view)) as file:
        yield file.write_table


@contextmanager
def _csv_writer(path: Path, view: penstock.View) -> Iterator[_Write]:
    with path.open("w", encoding="utf-8", newline="") as sink:
        file = csv.writer(sink)
        file.writerow(_schema(view).names)

        def write(table: pa.Table) -> None:
            columns = [_plain_values(table[name]) for name in table.column_names]
            for row in zip(*columns, strict=True):
                file.writerow(
                    json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value for value in row
                )

        yield write


@contextmanager
def _lines_writer(path: Path, view: penstock.View) -> Iterator[_Write]:
    with path.open("w", encoding="utf-8") as sink:
        yield lambda table: sink.writelines(f"{row}\n" for row in _json_rows(view, table))


@contextmanager
def _json_writer(path: Path, view: penstock.View) -> Iterator[_Write]:
    with path.open("w", encoding="utf-8") as sink:
        separator = "[\n"

        def write(table: pa.Table) -> None:
            nonlocal separator
            for row in _json_rows(view, table):
                sink.write(f"{separator}{row}")
                separator = ",\n"

        yield write
        sink.write("[]\n" if separator == "[\n" else "\n]\n")


_WRITERS: dict[str, Callable[[Path, penstock.View], AbstractContextManager[_Write]]] = {
    ".arrow": _arrow_writer,
    ".csv": _csv_writer,
    ".json": _json_writer,
    ".jsonl": _lines_writer,
    ".parquet": _parquet_writer,
}


def _schema(view: penstock.View) -> pa.Schema:
    return view[0:0].to_arrow().schema


def _json_rows(view: penstock.View, table: pa.Table) -> Iterator[str]:
    documents = {field.name for field in view.schema if isinstance(field.kind, Json)}
    columns = {name: _plain_values(table[name]) for name in table.column_names}
    for name in documents & columns.keys():
        columns[name] = [None if text is None else json.loads(text) for text in columns[name]]
    for values in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False)


def _plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Values as JSON has them: bytes in base64, times in ISO 8601, tensors as lists, NaN and infinity as null."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        valid = column.is_valid().to_pylist()
        found = [tensor for chunk in column.chunks for tensor in _tensors(chunk)]
        return [_plain(value) if present else None for value, present in zip(found, valid, strict=True)]
    return [_plain(value) for value in column.to_pylist()]


def _tensors(chunk: Any) -> Any:
    width, shape = chunk.storage.type.list_size, chunk.type.shape
    values = chunk.storage.values.slice(chunk.storage.offset * width, len(chunk) * width)
    return values.to_numpy(zero_copy_only=False).reshape(len(chunk), *shape).tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
