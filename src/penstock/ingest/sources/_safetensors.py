"""safetensors files: each tensor is a column whose first axis is rows, and each file a shard.

Tensors whose row count differs from that of most tensors of the file (on a tie, from the longest) are
rejected one by one; the others are read.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from struct import unpack
from typing import Any, TypeGuard

import numpy as np

from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format.kinds import Kind
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Source, SourceItem, SourceScan, evenly_spaced, suffix
from penstock.ingest.sources._arrays import (
    PREFETCH_BYTES,
    Array,
    ArraySlice,
    check_fit,
    common_kind,
    rejected,
    row_slices,
)
from penstock.storage import ObjectInfo, Prefetch, read_ahead, thread_map
from penstock.types import SMALL_FLOATS

_FIRST_READ_BYTES = 64 << 10
_MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 32
_SAMPLED_FILES = 256
_PLAIN = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}") for name in _PLAIN},
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype("<c8"),
    "BF16": SMALL_FLOATS["bfloat16"],
    "F8_E4M3": SMALL_FLOATS["float8_e4m3fn"],
    "F8_E4M3FNUZ": SMALL_FLOATS["float8_e4m3fnuz"],
    "F8_E5M2": SMALL_FLOATS["float8_e5m2"],
    "F8_E5M2FNUZ": SMALL_FLOATS["float8_e5m2fnuz"],
}

Tensors = dict[str, Array | str]
"""The tensors of a file by name; a string is the reason why a tensor cannot be a column."""


@dataclass(frozen=True)
class _Safetensors(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        prefetch = Prefetch(reader.max_concurrency, PREFETCH_BYTES)
        plans = read_ahead(partial(self._plan, reader), files, prefetch=prefetch, size=lambda _: _FIRST_READ_BYTES)
        slices = chain.from_iterable(plans)
        yield from read_ahead(lambda part: part.read(), slices, prefetch=prefetch, size=lambda part: part.nbytes)

    def _plan(self, reader: SourceReader, file: ObjectInfo) -> Iterator[ArraySlice]:
        try:
            tensors = _selected(reader, _tensors(reader, file))
            arrays = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Array)}
            columns = {name: arrays[name] for name in self.columns if name in arrays}
            check_fit(columns, self.columns)
        except (SampleError, SourceChangedError) as error:
            return iter([rejected(file.key, str(error))])
        others = (
            rejected(f"{file.key}/{name}", f"this tensor is skipped: {_skip_reason(tensor, columns)}")
            for name, tensor in tensors.items()
            if name not in columns
        )
        return chain(
            others, row_slices(reader, file.key, {name: (file, array) for name, array in columns.items()}, self.columns)
        )


def _selected(reader: SourceReader, tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if reader.selects(name)} or tensors


def _skip_reason(tensor: Array | str, columns: Mapping[str, Array]) -> str:
    if isinstance(tensor, str):
        return tensor
    rows = next(iter(columns.values())).rows
    if tensor.rows != rows:
        return f"it has {tensor.rows:,} rows, and the columns have {rows:,}"
    return "the other files have no tensor of this name"


def _tensors(reader: SourceReader, file: ObjectInfo) -> Tensors:
    """The tensors that the header of a file declares; raises `SampleError` if it is invalid."""
    head = reader.read(file, 0, min(file.size, _FIRST_READ_BYTES))
    if len(head) < 8:
        raise SampleError("it is not a safetensors file: it is too short")
    [length] = unpack("<Q", head[:8])
    if length > min(_MAX_HEADER_BYTES, file.size - 8):
        raise SampleError(
            f"it is not a safetensors file, or is truncated: its header would have {length:,} bytes, and the file has"
            f" {file.size:,}"
        )
    text = head[8 : 8 + length] if 8 + length <= len(head) else reader.read(file, 8, length)
    try:
        header = json.loads(bytes(text), object_pairs_hook=_unique_names)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SampleError("its header is not a JSON object")
    header.pop("__metadata__", None)
    start = 8 + length
    ranges = {name: _data_range(name, entry, file.size - start) for name, entry in header.items()}
    last_end = 0
    for name, (begin, end) in sorted(ranges.items(), key=lambda item: item[1]):
        if begin < last_end:
            raise SampleError(f"tensor {name!r} overlaps another tensor")
        last_end = end
    return {name: _tensor(name, header[name], start + begin, end - begin) for name, (begin, end) in ranges.items()}


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("it has a duplicate name")
    return dict(pairs)


def _data_range(name: str, entry: Any, size: int) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not _is_int_list(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise SampleError(f"tensor {name!r} lies at {str(offsets)[:100]}, which is outside the file")
    return offsets[0], offsets[1]


def _tensor(name: str, entry: Mapping[str, Any], start: int, size: int) -> Array | str:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not _is_int_list(shape) or len(shape) > _MAX_AXES:
        raise SampleError(f"tensor {name!r} has the shape {str(shape)[:100]}, which is not a valid shape")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        return f"its type {str(dtype)[:100]} is not supported"
    array = Array(_DTYPES[dtype], tuple(shape), start)
    if array.nbytes != size:
        raise SampleError(f"tensor {name!r} has {size:,} bytes, and its shape needs {array.nbytes:,}")
    return array.problem() or array


def _is_int_list(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _common_length(tensors: Tensors) -> dict[str, Array]:
    """The tensors whose row count is the most common one."""
    arrays = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Array)}
    lengths = Counter(array.rows for array in arrays.values())
    rows = max(lengths, key=lambda length: (lengths[length], length), default=0)
    return {name: array for name, array in arrays.items() if array.rows == rows}


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    chosen = [file for file in files if suffix(file.key) == ".safetensors"]
    if not chosen:
        raise InvalidInputError(f"{reader.store.uri} holds no .safetensors file")

    def inspect(file: ObjectInfo) -> dict[str, Array] | str:
        try:
            tensors = _selected(reader, _tensors(reader, file))
        except (SampleError, SourceChangedError) as error:
            return str(error)
        reasons = (tensor for tensor in tensors.values() if isinstance(tensor, str))
        return _common_length(tensors) or next(reasons, "it holds no tensor")

    inspected = thread_map(inspect, evenly_spaced(chosen, _SAMPLED_FILES), max_workers=reader.max_concurrency)
    good = [found for found in inspected if not isinstance(found, str)]
    if not good:
        raise InvalidInputError(f"{reader.uri(chosen[0].key)}: {inspected[0]}")
    [(names, _)] = Counter(map(frozenset, good)).most_common(1)
    common = [found for found in good if found.keys() == names]
    return _Safetensors(chosen, {name: common_kind(name, [found[name] for found in common]) for name in common[0]})


SAFETENSORS = Source(
    "safetensors",
    "safetensors files: each tensor is a column, its first axis the rows",
    extensions=(".safetensors",),
    recognise=lambda listing: listing.has_mostly((".safetensors",)),
    open=_open,
)
