"""Saved views: the rows of a view by row id, its columns, and the values of computed ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding
from penstock.format._schema import check_column_name
from penstock.format._sealed import from_json, load_json
from penstock.types import Buffer

_ROW_ID = "_row_id"


@dataclass(frozen=True)
class SavedRows:
    """The content of a saved view."""

    row_ids: npt.NDArray[np.int64]
    """In the order of the view; a row may be there more than once."""
    computed: pa.Table
    """The computed columns, with a value for each row."""
    columns: tuple[str, ...]
    """The names of the view's columns in order; `_row_id` may be one of them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Columns of the table with another name: new names to field ids, in hexadecimal."""


def encode_saved_view(saved: SavedRows) -> tuple[int, int, bytes]:
    """Encode a view, and return its length, its checksum and its bytes."""
    about = json.dumps({"columns": list(saved.columns), "renamed": dict(saved.renamed)}).encode()
    rows = pa.table(
        {_ROW_ID: saved.row_ids, **dict(zip(saved.computed.column_names, saved.computed.columns, strict=True))}
    )
    table = rows.replace_schema_metadata({b"view": about})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return len(data), crc32c(data), data


def decode_saved_view(data: Buffer, where: str, *, length: int, crc: int, rows: int) -> SavedRows:
    """Verify and decode a view of `rows` rows; raises `CorruptError`."""
    if len(data) != length or crc32c(data) != crc:
        raise corrupt_error(where, "its checksum does not match its name")
    with decoding(where):
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        about = from_json(_About, load_json((table.schema.metadata or {})[b"view"]))
        ids = table.column(_ROW_ID).cast(pa.int64())
        computed = table.drop_columns([_ROW_ID])
        if ids.null_count or len(ids) != rows or (rows and int(pc.min(ids).as_py()) < 0):
            raise ValueError("its row ids cannot be right")
        names = [*about.renamed, *computed.column_names]
        for name in (*names, *(name for name in about.columns if name != _ROW_ID)):
            check_column_name(name)
        if len(set(names)) < len(names) or len(set(about.columns)) < len(about.columns):
            raise ValueError("two of its columns have one name")
        if not set(names) <= set(about.columns):
            raise ValueError("a column is not listed")
        for id in about.renamed.values():
            if not 0 < int(id, 16) < 1 << 63:
                raise ValueError(f"{id!r} is no field id")
        return SavedRows(ids.to_numpy(), computed, about.columns, about.renamed)


@dataclass(frozen=True)
class _About:
    columns: tuple[str, ...]
    renamed: Mapping[str, str]
