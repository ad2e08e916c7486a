"""Arrays whose first axis is rows, and their rows in slices of bounded size, fetched by ranges with read-ahead."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, SampleError
from penstock.format import infer_schema
from penstock.format.kinds import Bytes, Kind, Tensor, Text
from penstock.ingest._reader import MAX_VALUE_BYTES, SourceReader
from penstock.ingest._source import Reject, RowBatch, SourceItem
from penstock.storage import ObjectInfo, thread_map
from penstock.types import Buffer

SLICE_BYTES = 8 << 20
_FORTRAN_SLICE_BYTES = 32 << 20
"""A slice in Fortran order takes one read for each value of a row; larger slices mean fewer and longer reads."""
_MAX_FORTRAN_VALUES = 1 << 20
PREFETCH_BYTES = 32 << 20
_MAX_ROW_VALUES = 1 << 30
"""Arrow counts the values of a tensor, two for a complex one, in 31 bits."""


@dataclass(frozen=True)
class Array:
    """The dtype and shape of an array whose first axis is rows, and its position in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0
    """Offset of the values in the file."""
    fortran: bool = False
    """Whether the first axis varies fastest, so that the values of a row are not contiguous."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return prod(self.row_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def as_one_row(self) -> "Array":
        """The whole array as a single row."""
        return replace(self, shape=(1, *self.shape))

    def from_bytes(self, data: Buffer) -> npt.NDArray[Any]:
        """The array from the bytes of its values."""
        if not self.nbytes:
            return np.zeros(self.shape, self.dtype)
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.fortran else "C")

    def problem(self) -> str | None:
        """Why its rows cannot be stored in a column, or None."""
        if self.dtype.hasobject:
            return "it holds Python objects, which are pickled and never loaded; save numeric or string arrays instead"
        if self.dtype.names or self.dtype.subdtype:
            return "it is a structured array; save each field as a separate array"
        if self.dtype.type is np.void:  # bfloat16 and float8 are of kind V too
            return f"it holds raw bytes ({self.dtype}): numpy loses bfloat16 and float8; save them as safetensors"
        if self.dtype.kind not in "US" and (problem := _dtype_problem(self.dtype)) is not None:
            return problem
        if not self.shape:
            return "it is a scalar and has no axis of rows"
        if self.dtype.kind in "US" and self.row_shape:
            return f"it holds {self.row_shape} strings per row; only one per row can be stored"
        values = prod(length or 1 for length in self.row_shape)
        if self.row_bytes > MAX_VALUE_BYTES or values > _MAX_ROW_VALUES:
            return f"a row has {values:,} values; the limit is {_MAX_ROW_VALUES:,} values in 4 GiB"
        if not self.row_bytes and self.rows > 1:
            return f"it has {self.rows:,} empty rows"
        if self.fortran and values > _MAX_FORTRAN_VALUES and self.nbytes > _FORTRAN_SLICE_BYTES:
            return "it is in Fortran order, and its rows are too long to be gathered; save np.ascontiguousarray of it"
        return None

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.row_shape) if self.row_shape else ''}"


def check_together(arrays: Mapping[str, Array]) -> None:
    """Raise `SampleError` for arrays that cannot be columns of the same rows."""
    for name, array in arrays.items():
        if (problem := array.problem()) is not None:
            raise SampleError(f"{name} cannot be a column: {problem}")
    if len({array.rows for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {array.rows:,}" for name, array in sorted(arrays.items()))
        raise SampleError(f"its arrays have different row counts: {lengths}")


def check_fit(arrays: Mapping[str, Array], kinds: Mapping[str, Kind]) -> None:
    """Raise `SampleError` for arrays that do not match the columns of the table."""
    if arrays.keys() != kinds.keys():
        raise SampleError(f"its arrays are {', '.join(sorted(arrays))}, and the columns are {', '.join(sorted(kinds))}")
    check_together(arrays)
    for name, array in arrays.items():
        if (reason := _mismatch(kinds[name], array)) is not None:
            raise SampleError(f"{name} does not match: {reason}")


def common_kind(name: str, arrays: Sequence[Array]) -> Kind:
    """The kind that fits the rows of these arrays; arrays with an unusual number of axes do not count."""
    [(most, _)] = Counter(map(_rank_key, arrays)).most_common(1)
    common = {(array.dtype, array.row_shape) for array in arrays if _rank_key(array) == most}
    if most[0]:
        return Text() if most[0] == "U" else Bytes()
    examples = [np.broadcast_to(np.zeros((), _native(dtype)), shape) for dtype, shape in common]
    return infer_schema({name: examples})[name].kind


def _mismatch(kind: Kind, array: Array) -> str | None:
    """Why a column cannot hold the rows of an array, or None."""
    if array.dtype.kind in "US":
        fits = isinstance(kind, Text if array.dtype.kind == "U" else Bytes)
    elif isinstance(kind, Tensor) and len(kind.shape) == len(array.row_shape):
        fits = all(expected in (None, length) for expected, length in zip(kind.shape, array.row_shape, strict=True))
    else:
        fits = False
    return None if fits else f"its rows are {array}, and the column holds {kind}"


@cache
def _dtype_problem(dtype: np.dtype[Any]) -> str | None:
    try:
        infer_schema({"it": np.zeros(0, _native(dtype))})
    except InvalidInputError as error:
        return str(error).removeprefix("column 'it': ").removesuffix("; or give a schema")
    return None


def _rank_key(array: Array) -> tuple[str, int]:
    return array.dtype.kind if array.dtype.kind in "US" else "", len(array.shape)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def to_native(values: npt.NDArray[Any]) -> Any:
    """Values as `Kind.to_array` accepts them: strings as a list, other values in native byte order."""
    if values.dtype.kind in "US":
        return values.tolist()
    if values.dtype.kind == "b":
        return values.view(np.uint8) != 0  # a file may hold any nonzero byte for true
    return np.require(values, _native(values.dtype), ["C", "A"])


def to_batch(
    name: str, columns: Mapping[str, npt.NDArray[Any]], kinds: Mapping[str, Kind], first_row: int
) -> SourceItem:
    """Rows as a `RowBatch`; a `Reject` if they do not match the columns."""
    try:
        arrays = [kinds[column].to_array(to_native(values)) for column, values in columns.items()]
    except ValueError as error:
        end = first_row + len(next(iter(columns.values())))
        return Reject(f"{name}[{first_row}:{end}]", f"these rows do not match the columns: {error}")
    return RowBatch(name, pa.RecordBatch.from_arrays(arrays, names=list(columns)))


class ArraySlice(NamedTuple):
    """A read to be scheduled, and about how much memory it takes."""

    nbytes: int
    read: Callable[[], SourceItem]


def rejected(name: str, reason: str) -> ArraySlice:
    """A slice that reports why a file is not read."""
    return ArraySlice(0, partial(Reject, name, reason))


def row_slices(
    reader: SourceReader, name: str, arrays: Mapping[str, tuple[ObjectInfo, Array]], kinds: Mapping[str, Kind]
) -> Iterator[ArraySlice]:
    """The rows of uncompressed arrays of equal length, as slices."""
    [rows] = {array.rows for _, array in arrays.values()}
    row_bytes = max(1, sum(array.row_bytes for _, array in arrays.values()))
    fortran = any(array.fortran and array.row_shape for _, array in arrays.values())
    step = max(1, (_FORTRAN_SLICE_BYTES if fortran else SLICE_BYTES) // row_bytes)

    def read(start: int, end: int) -> SourceItem:
        columns = {column: _read_rows(reader, file, array, start, end) for column, (file, array) in arrays.items()}
        return to_batch(name, columns, kinds, start)

    for start in range(0, rows, step):
        end = min(start + step, rows)
        yield ArraySlice((end - start) * row_bytes, partial(read, start, end))


def _read_rows(reader: SourceReader, file: ObjectInfo, array: Array, start: int, end: int) -> npt.NDArray[Any]:
    part = replace(array, shape=(end - start, *array.row_shape))
    if part.shape == array.shape:
        return part.from_bytes(reader.read(file, array.start, array.nbytes))
    if not array.fortran:
        return part.from_bytes(reader.read(file, array.start + start * array.row_bytes, part.nbytes))
    itemsize = array.dtype.itemsize
    offsets = [array.start + (index * array.rows + start) * itemsize for index in range(prod(array.row_shape))]
    parts = thread_map(
        lambda at: reader.read(file, at, (end - start) * itemsize), offsets, max_workers=reader.max_concurrency
    )
    return part.from_bytes(b"".join(parts))
