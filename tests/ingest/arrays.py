"""What a source of arrays gives, as values that can be compared."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import as_column
from penstock.format.kinds import Kind
from penstock.ingest import Reading, Reject, Row, Source
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import is_hidden
from penstock.storage import Store, open_store


def opened(source: Source, place: Path | Store) -> tuple[Bucket, Reading]:
    store = open_store(place) if isinstance(place, Path) else place
    bucket = Bucket(store)
    return bucket, source.open(bucket, [file for file in store.list() if file.size and not is_hidden(file.key)])


def taken(source: Source, place: Path | Store) -> tuple[dict[str, list[Any]], list[Reject]]:
    """All rows, column by column, as their kinds read them; and what was refused."""
    bucket, reading = opened(source, place)
    columns: dict[str, list[Any]] = {}
    rejects: list[Reject] = []
    for item in reading.rows(bucket, reading.files):
        if isinstance(item, Reject):
            rejects.append(item)
        elif isinstance(item, Row):
            for name, value in item.values.items():
                columns.setdefault(name, []).append(value)
        else:
            for name, array in zip(item.batch.schema.names, item.batch.columns, strict=True):
                columns.setdefault(name, []).extend(kinds(reading)[name].to_values(array))
    return columns, rejects


def kinds(reading: Reading) -> dict[str, Kind]:
    return {name: as_column(name, column).kind for name, column in reading.columns.items()}


def same(rows: list[Any], array: npt.NDArray[Any]) -> bool:
    """Whether rows are those of an array, of the same type and bit for bit."""
    if len(rows) != len(array):
        return False
    native = array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array
    stacked = np.stack([np.asarray(row) for row in rows]) if rows else native
    return stacked.dtype == native.dtype and stacked.shape == native.shape and stacked.tobytes() == native.tobytes()
