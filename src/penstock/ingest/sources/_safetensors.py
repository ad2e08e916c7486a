"""safetensors files: each tensor is a column whose first axis is rows, and each file a shard.

Tensors that have another number of rows than most of their file's (or than the longest, where no number is usual) are
refused, and the others go on.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from struct import unpack
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from penstock.errors import InvalidInputError, SampleError, SourceChanged
from penstock.format.kinds import Kind
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Reading, Source, spread, suffix
from penstock.ingest.sources._arrays import (
    Array,
    Piece,
    ahead,
    check_fit,
    common_kind,
    pieces,
    refused,
)
from penstock.storage import ObjectInfo, run_all

_FIRST_READ_BYTES = 64 << 10
_MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 32
_LOOKED_AT = 256
_PLAIN = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}") for name in _PLAIN},
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype("<c8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}

Tensors = dict[str, Array | str]
"""A file's tensors by name; one that cannot be a column is the reason why."""


@dataclass(frozen=True)
class _Safetensors(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        plans = ahead(((_FIRST_READ_BYTES, partial(self._plan, bucket, file)) for file in files), bucket.readers)
        yield from ahead((piece for plan in plans for piece in plan), bucket.readers)

    def _plan(self, bucket: Bucket, file: ObjectInfo) -> Iterator[Piece]:
        try:
            tensors = _tensors(bucket, file)
            arrays = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Array)}
            columns = {name: arrays[name] for name in self.columns if name in arrays}
            check_fit(columns, self.columns)
        except (SampleError, SourceChanged) as error:
            return iter([refused(file.key, str(error))])
        others = (
            refused(f"{file.key}/{name}", f"this tensor is left out: {_why(tensor, columns)}")
            for name, tensor in tensors.items()
            if name not in columns
        )
        return chain(
            others, pieces(bucket, file.key, {name: (file, array) for name, array in columns.items()}, self.columns)
        )


def _why(tensor: Array | str, columns: Mapping[str, Array]) -> str:
    if isinstance(tensor, str):
        return tensor
    rows = next(iter(columns.values())).rows
    if tensor.rows != rows:
        return f"it has {tensor.rows:,} rows, and the columns have {rows:,}"
    return "the other files have none of this name"


def _tensors(bucket: Bucket, file: ObjectInfo) -> Tensors:
    """What a file's header says; `SampleError` where that cannot be true."""
    head = bucket.read(file, 0, min(file.size, _FIRST_READ_BYTES))
    if len(head) < 8:
        raise SampleError("it is not a safetensors file: it is too short")
    [length] = unpack("<Q", head[:8])
    if length > min(_MAX_HEADER_BYTES, file.size - 8):
        raise SampleError(
            f"it is not a safetensors file, or was cut off: its header would have {length:,} bytes, and the file has"
            f" {file.size:,}"
        )
    text = head[8 : 8 + length] if 8 + length <= len(head) else bucket.read(file, 8, length)
    try:
        header = json.loads(bytes(text), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SampleError("its header is not a JSON object")
    header.pop("__metadata__", None)
    start = 8 + length
    places = {name: _place(name, entry, file.size - start) for name, entry in header.items()}
    reached = 0
    for name, (begin, end) in sorted(places.items(), key=lambda item: item[1]):
        if begin < reached:
            raise SampleError(f"tensor {name!r} overlaps another one")
        reached = end
    return {name: _tensor(name, header[name], start + begin, end - begin) for name, (begin, end) in places.items()}


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("it has a name twice")
    return dict(pairs)


def _place(name: str, entry: Any, size: int) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not _is_lengths(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise SampleError(f"tensor {name!r} lies at {str(offsets)[:100]}, which is not within the file")
    return offsets[0], offsets[1]


def _tensor(name: str, entry: Mapping[str, Any], start: int, size: int) -> Array | str:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not _is_lengths(shape) or len(shape) > _MAX_AXES:
        raise SampleError(f"tensor {name!r} has the shape {str(shape)[:100]}, which no tensor has")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        return f"its type {str(dtype)[:100]} is not known here"
    array = Array(_DTYPES[dtype], tuple(shape), start)
    if array.nbytes != size:
        raise SampleError(f"tensor {name!r} has {size:,} bytes, and its shape asks for {array.nbytes:,}")
    return array.flaw() or array


def _is_lengths(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _usual(tensors: Tensors) -> dict[str, Array]:
    """The tensors with as many rows as most have."""
    arrays = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Array)}
    lengths = Counter(array.rows for array in arrays.values())
    rows = max(lengths, key=lambda length: (lengths[length], length), default=0)
    return {name: array for name, array in arrays.items() if array.rows == rows}


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    mine = [file for file in files if suffix(file.key) == ".safetensors"]
    if not mine:
        raise InvalidInputError(f"{bucket.store.uri} holds no .safetensors file")

    def look(file: ObjectInfo) -> dict[str, Array] | str:
        try:
            tensors = _tensors(bucket, file)
        except (SampleError, SourceChanged) as error:
            return str(error)
        reasons = (tensor for tensor in tensors.values() if isinstance(tensor, str))
        return _usual(tensors) or next(reasons, "it holds no tensor")

    looks = run_all(look, spread(mine, _LOOKED_AT), max_workers=bucket.readers)
    good = [found for found in looks if not isinstance(found, str)]
    if not good:
        raise InvalidInputError(f"{bucket.uri(mine[0].key)}: {looks[0]}")
    [(names, _)] = Counter(map(frozenset, good)).most_common(1)
    usual = [found for found in good if found.keys() == names]
    return _Safetensors(mine, {name: common_kind(name, [found[name] for found in usual]) for name in usual[0]})


SAFETENSORS = Source(
    "safetensors",
    "safetensors files: each tensor is a column, its first axis the rows",
    recognise=lambda listing: listing.are_most((".safetensors",)),
    open=_open,
)
