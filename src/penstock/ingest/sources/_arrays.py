"""Arrays whose first axis is rows: what they are, and their rows in bounded pieces, read by ranges and ahead."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, SampleError
from penstock.format import infer_schema
from penstock.format.kinds import Bytes, Kind, Tensor, Text
from penstock.ingest._bucket import MAX_VALUE_BYTES, Bucket
from penstock.ingest._source import Found, Reject, Rows
from penstock.storage import ObjectInfo, run_all
from penstock.types import Buffer

PIECE_BYTES = 8 << 20
_SCATTERED_PIECE_BYTES = 32 << 20
"""Rows in Fortran order are gathered from all over the file: the more at once, the fewer and the longer the reads."""
_MAX_SCATTERED_NUMBERS = 1 << 20
_AHEAD_BYTES = 32 << 20
_MAX_ROW_NUMBERS = 1 << 30
"""Arrow counts the numbers of a tensor, two for a complex one, in 31 bits."""

T = TypeVar("T")


@dataclass(frozen=True)
class Array:
    """An array whose first axis is rows, and where in its file the numbers begin."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int = 0
    fortran: bool = False
    """Whether the first axis runs fastest, so that the numbers of a row are scattered over the file."""

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
        """The same numbers, all of them in one row."""
        return replace(self, shape=(1, *self.shape))

    def of(self, data: Buffer) -> npt.NDArray[Any]:
        """The array, from the bytes of its numbers."""
        if not self.nbytes:
            return np.zeros(self.shape, self.dtype)
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.fortran else "C")

    def flaw(self) -> str | None:
        """What keeps its rows from being rows of a table, if anything."""
        if self.dtype.hasobject:
            return "it holds Python objects, which are pickled and never loaded; save numbers or strings instead"
        if self.dtype.names or self.dtype.subdtype:
            return "it is a structured array; save each of its fields as an array of its own"
        if self.dtype.type is np.void:  # bfloat16 and float8 are of kind V too
            return f"it holds raw bytes ({self.dtype}): numpy forgets bfloat16 and float8; save them as safetensors"
        if self.dtype.kind not in "US" and (flaw := _dtype_flaw(self.dtype)) is not None:
            return flaw
        if not self.shape:
            return "it is a single value and has no axis of rows"
        if self.dtype.kind in "US" and self.row_shape:
            return f"it holds {self.row_shape} strings a row; one a row can be stored"
        numbers = prod(length or 1 for length in self.row_shape)
        if self.row_bytes > MAX_VALUE_BYTES or numbers > _MAX_ROW_NUMBERS:
            return f"a row of it is {numbers:,} numbers; {_MAX_ROW_NUMBERS:,} in 4 GiB are the most"
        if not self.row_bytes and self.rows > 1:
            return f"it has {self.rows:,} rows with nothing in them"
        if self.fortran and numbers > _MAX_SCATTERED_NUMBERS and self.nbytes > _SCATTERED_PIECE_BYTES:
            return "it is in Fortran order, and its rows too long to be gathered; save np.ascontiguousarray of it"
        return None

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.row_shape) if self.row_shape else ''}"


def check_together(arrays: Mapping[str, Array]) -> None:
    """Refuse arrays that cannot be columns of the same rows."""
    for name, array in arrays.items():
        if (flaw := array.flaw()) is not None:
            raise SampleError(f"{name} cannot be a column: {flaw}")
    if len({array.rows for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {array.rows:,}" for name, array in sorted(arrays.items()))
        raise SampleError(f"its arrays have different numbers of rows: {lengths}")


def check_fit(arrays: Mapping[str, Array], kinds: Mapping[str, Kind]) -> None:
    """Refuse arrays that are not the columns of a table."""
    if arrays.keys() != kinds.keys():
        raise SampleError(f"its arrays are {', '.join(sorted(arrays))}, and the columns {', '.join(sorted(kinds))}")
    check_together(arrays)
    for name, array in arrays.items():
        if (reason := _misfit(kinds[name], array)) is not None:
            raise SampleError(f"{name} does not fit: {reason}")


def common_kind(name: str, arrays: Sequence[Array]) -> Kind:
    """The kind of column that takes the rows of all these arrays, or of those that have as many axes as most have."""
    [(most, _)] = Counter(map(_likeness, arrays)).most_common(1)
    alike = {(array.dtype, array.row_shape) for array in arrays if _likeness(array) == most}
    if most[0]:
        return Text() if most[0] == "U" else Bytes()
    examples = [np.broadcast_to(np.zeros((), _native(dtype)), shape) for dtype, shape in alike]
    return infer_schema({name: examples})[name].kind


def _misfit(kind: Kind, array: Array) -> str | None:
    """Why a column does not take the rows of an array, if it does not."""
    if array.dtype.kind in "US":
        fits = isinstance(kind, Text if array.dtype.kind == "U" else Bytes)
    elif isinstance(kind, Tensor) and len(kind.shape) == len(array.row_shape):
        fits = all(length in (None, its) for length, its in zip(kind.shape, array.row_shape, strict=True))
    else:
        fits = False
    return None if fits else f"its rows are {array}, and those of the column {kind}"


@cache
def _dtype_flaw(dtype: np.dtype[Any]) -> str | None:
    try:
        infer_schema({"it": np.zeros(0, _native(dtype))})
    except InvalidInputError as error:
        return str(error).removeprefix("column 'it': ").removesuffix("; or give a schema")
    return None


def _likeness(array: Array) -> tuple[str, int]:
    return array.dtype.kind if array.dtype.kind in "US" else "", len(array.shape)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def plain(values: npt.NDArray[Any]) -> Any:
    """Values as a kind of column takes them: strings as such, and numbers in this machine's order."""
    if values.dtype.kind in "US":
        return values.tolist()
    if values.dtype.kind == "b":
        return values.view(np.uint8) != 0  # whoever wrote the file may have taken any byte for true
    return np.require(values, _native(values.dtype), ["C", "A"])


def batch(name: str, columns: Mapping[str, npt.NDArray[Any]], kinds: Mapping[str, Kind], first_row: int) -> Found:
    """Rows as Arrow data; if they do not fit the columns, why."""
    try:
        arrays = [kinds[column].to_array(plain(values)) for column, values in columns.items()]
    except ValueError as error:
        end = first_row + len(next(iter(columns.values())))
        return Reject(f"{name}[{first_row}:{end}]", f"these rows do not fit the columns: {error}")
    return Rows(name, pa.RecordBatch.from_arrays(arrays, names=list(columns)))


class Piece(NamedTuple):
    """Something to be read, and about how much memory it will take."""

    size: int
    read: Callable[[], Found]


def refused(name: str, reason: str) -> Piece:
    """What stands for a file that is not read."""
    return Piece(0, partial(Reject, name, reason))


def pieces(
    bucket: Bucket, name: str, arrays: Mapping[str, tuple[ObjectInfo, Array]], kinds: Mapping[str, Kind]
) -> Iterator[Piece]:
    """The rows of arrays of one length that lie in files as they are."""
    [rows] = {array.rows for _, array in arrays.values()}
    width = max(1, sum(array.row_bytes for _, array in arrays.values()))
    scattered = any(array.fortran and array.row_shape for _, array in arrays.values())
    step = max(1, (_SCATTERED_PIECE_BYTES if scattered else PIECE_BYTES) // width)

    def read(start: int, end: int) -> Found:
        columns = {column: _rows(bucket, file, array, start, end) for column, (file, array) in arrays.items()}
        return batch(name, columns, kinds, start)

    for start in range(0, rows, step):
        end = min(start + step, rows)
        yield Piece((end - start) * width, partial(read, start, end))


def _rows(bucket: Bucket, file: ObjectInfo, array: Array, start: int, end: int) -> npt.NDArray[Any]:
    part = replace(array, shape=(end - start, *array.row_shape))
    if part.shape == array.shape:
        return part.of(bucket.read(file, array.start, array.nbytes))
    if not array.fortran:
        return part.of(bucket.read(file, array.start + start * array.row_bytes, part.nbytes))
    size = array.dtype.itemsize
    begins = [array.start + (place * array.rows + start) * size for place in range(prod(array.row_shape))]
    found = run_all(lambda at: bucket.read(file, at, (end - start) * size), begins, max_workers=bucket.readers)
    return part.of(b"".join(found))


def ahead(jobs: Iterable[tuple[int, Callable[[], T]]], readers: int) -> Iterator[T]:
    """The results of jobs in order, with the next ones under way as far as their sizes allow."""
    with ThreadPoolExecutor(readers, "penstock-arrays") as pool:
        waiting: deque[tuple[int, Future[T]]] = deque()
        size = 0

        def first() -> T:
            nonlocal size
            taken, future = waiting.popleft()
            size -= taken
            return future.result()

        try:
            for need, job in jobs:
                while waiting and (size + need > _AHEAD_BYTES or len(waiting) >= 2 * readers):
                    yield first()
                waiting.append((need, pool.submit(job)))
                size += need
            while waiting:
                yield first()
        finally:
            for _, future in waiting:
                future.cancel()
