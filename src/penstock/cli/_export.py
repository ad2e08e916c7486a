"""Write the rows of a version as one Arrow or Parquet file, batch by batch.

The file appears under its name when it is whole: until then it is a hidden one beside it.
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
_LINKED_ROWS = 64
"""Rows of a batch where nobody knows how large the objects are that they link to."""
FORMATS = (".arrow", ".parquet")


def check_target(to: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or must not be, before anything is read."""
    if to.suffix not in FORMATS:
        raise InvalidInputError(f"{to} is to end with {' or '.join(FORMATS)}, which says what is written")
    if not to.parent.is_dir():
        raise InvalidInputError(f"there is no folder {to.parent}; make it first")
    if to.is_dir():
        raise InvalidInputError(f"{to} is a folder; name a file")
    if to.exists() and not force:
        raise AlreadyExistsError(f"{to} is there already; choose another name, or overwrite it with --force")


def part_of(to: Path) -> Path:
    """The name under which a file is written."""
    return to.with_name(f".{to.name}.{token_hex(4)}.part")


def export(dataset: penstock.Dataset, to: Path, part: Path, progress: Callable[[int], None]) -> None:
    """Write all rows; `progress` is told how many are written."""
    schema = dataset[0:0].to_arrow().schema
    size = batch_rows(dataset)
    try:
        with _writer(part, schema, parquet=to.suffix == ".parquet") as write:
            for start in range(0, len(dataset), size):
                write(dataset[start : start + size].to_arrow())
                progress(min(start + size, len(dataset)))
        part.replace(to)
    except OSError as error:
        raise StorageError(f"cannot write {to}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def batch_rows(dataset: penstock.Dataset) -> int:
    """Rows that are read at once, judged by how many bytes a row has on average."""
    most = _LINKED_ROWS if any(isinstance(field.kind, Linked) for field in dataset.schema) else _BATCH_ROWS
    row_bytes = dataset.summary().bytes // max(1, len(dataset))
    return max(1, min(most, _BATCH_BYTES // max(1, row_bytes)))


@contextmanager
def _writer(part: Path, schema: Any, *, parquet: bool) -> Iterator[Callable[[Any], None]]:
    if parquet:
        with pq.ParquetWriter(part, schema) as file:
            yield file.write_table
    else:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_table
