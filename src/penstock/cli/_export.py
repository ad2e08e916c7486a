"""Export the rows of a version as one Arrow or Parquet file, in batches.

A hidden temporary file in the same folder is renamed to the target when it is complete.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.errors import AlreadyExistsError, InvalidInputError, StorageError
from penstock.format.kinds import Linked

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 16
_LINKED_BATCH_ROWS = 64
"""Rows of a batch with linked values, whose sizes are not known."""
FORMATS = (".arrow", ".parquet")


def check_target(to: Path, *, force: bool) -> None:
    """Raise `InvalidInputError` or `AlreadyExistsError` for a file that cannot or must not be written."""
    if to.suffix not in FORMATS:
        raise InvalidInputError(f"{to} must end with {' or '.join(FORMATS)}, which selects the format")
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
    schema = dataset[0:0].to_arrow().schema
    size = batch_rows(dataset)
    try:
        with _writer(temporary, schema, parquet=to.suffix == ".parquet") as write:
            for start in range(0, len(dataset), size):
                write(dataset[start : start + size].to_arrow())
                progress(min(start + size, len(dataset)))
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


@contextmanager
def _writer(path: Path, schema: Any, *, parquet: bool) -> Iterator[Callable[[Any], None]]:
    if parquet:
        with pq.ParquetWriter(path, schema) as file:
            yield file.write_table
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_table
