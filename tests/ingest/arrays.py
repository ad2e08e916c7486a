"""Read the items of array sources into comparable columns."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import as_column
from penstock.format.kinds import Kind
from penstock.ingest import Reject, Row, Source, SourceScan
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import is_hidden
from penstock.storage import Store, open_store


def open_scan(source: Source, place: Path | Store) -> tuple[SourceReader, SourceScan]:
    store = open_store(place) if isinstance(place, Path) else place
    reader = SourceReader(store)
    return reader, source.open(reader, [file for file in store.list() if file.size and not is_hidden(file.key)])


def read_columns(source: Source, place: Path | Store) -> tuple[dict[str, list[Any]], list[Reject]]:
    """All rows by column, decoded by their kinds; and the rejects."""
    reader, scan = open_scan(source, place)
    columns: dict[str, list[Any]] = {}
    rejects: list[Reject] = []
    for item in scan.rows(reader, scan.files):
        if isinstance(item, Reject):
            rejects.append(item)
        elif isinstance(item, Row):
            for name, value in item.values.items():
                columns.setdefault(name, []).append(value)
        else:
            for name, array in zip(item.batch.schema.names, item.batch.columns, strict=True):
                columns.setdefault(name, []).extend(kinds(scan)[name].to_values(array))
    return columns, rejects


def kinds(scan: SourceScan) -> dict[str, Kind]:
    return {name: as_column(name, column).kind for name, column in scan.columns.items()}


def same(rows: list[Any], array: npt.NDArray[Any]) -> bool:
    """Whether rows are bitwise equal to those of an array, with the same dtype."""
    if len(rows) != len(array):
        return False
    native = array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array
    stacked = np.stack([np.asarray(row) for row in rows]) if rows else native
    return stacked.dtype == native.dtype and stacked.shape == native.shape and stacked.tobytes() == native.tobytes()
