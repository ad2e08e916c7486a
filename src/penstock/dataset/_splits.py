"""Split rows by their row ids, or by the values of a column."""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Bytes, Label, Tensor, Text
from penstock.plan import Splits, take_positions
from penstock.storage import Prefetch, read_ahead
from penstock.table import ROW_ID, Int64Array, Reader

_READ_ROWS = 1 << 16
_NULL_KEY = 0x4E554C4C5E5DA7A1
"""The key of rows without a value."""


def split_rows(
    reader: Reader, rows: range | Int64Array, splits: Splits, *, by: str | None, stratify: str | None
) -> dict[str, Int64Array]:
    """The positions of each split, in the order of `rows`; reads no column but the named ones."""
    for name in (by, stratify):
        if name is not None:
            _check_kind(reader.snapshot.schema[name])
    keys = _read_keys(reader, ROW_ID if by is None else by, rows)
    strata = None if stratify is None else _read_keys(reader, stratify, rows)
    if by is not None and strata is not None:
        _check_groups(keys, strata, f"rows of one group of column {by!r} have different values of column {stratify!r}")
    assigned = splits.assign(keys, strata)
    return {name: take_positions(rows, np.flatnonzero(assigned == index)) for index, name in enumerate(splits.shares)}


def _check_kind(field: Field) -> None:
    kind = field.kind
    if isinstance(kind, Tensor) and kind.shape == () and kind.element.logical.kind in "biuMm":
        return
    if not isinstance(kind, Label | Text | Bytes):
        raise InvalidInputError(
            f"column {field.name!r} holds {kind}; rows are split by integers, text, bytes, bools, labels or times"
        )


def _check_groups(keys: Int64Array, strata: Int64Array, problem: str) -> None:
    order = np.lexsort((strata, keys))
    mixed = (np.diff(keys[order]) == 0) & (np.diff(strata[order]) != 0)
    if mixed.any():
        first = int(mixed.argmax())
        rows = " and ".join(map(str, sorted(order[first : first + 2].tolist())))
        raise InvalidInputError(f"{problem}, such as rows {rows}; a group is in one split, so it has one stratum")


def _read_keys(reader: Reader, name: str, rows: range | Int64Array) -> Int64Array:
    """One integer for each row, equal for equal values; a column is read in parts."""
    starts = range(0, len(rows), _READ_ROWS)
    groups = (take_positions(rows, np.arange(start, min(start + _READ_ROWS, len(rows)))) for start in starts)
    parts = read_ahead(lambda group: _keys(reader.arrow([name], group)[name]), groups, prefetch=Prefetch(4))
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _keys(column: pa.ChunkedArray) -> Int64Array:
    array = column.combine_chunks()
    if pa.types.is_string(array.type) or pa.types.is_large_binary(array.type):
        array = array.dictionary_encode()
        hashes: Int64Array = np.array([_NULL_KEY, *map(_hash, array.dictionary.to_pylist())], np.int64)
        return take_positions(hashes, array.indices.fill_null(-1).to_numpy() + 1)
    if pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
        array = array.view(pa.int64())
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    values: npt.NDArray[np.int64] = array.fill_null(0).to_numpy().astype(np.int64)
    return np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL_KEY, values)


def _hash(value: str | bytes) -> int:
    data = value.encode() if isinstance(value, str) else value
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
