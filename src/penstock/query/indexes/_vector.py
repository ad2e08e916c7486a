"""Vector indexes: lists of similar vectors, each stored as int8 differences to the centroid of its list (IVF).

A search reads the centroids once, and then the lists nearest to its query. Vectors of an index of cosine similarity
have unit length. Rows without a score (null, NaN, infinity, no direction) have no entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptError, InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Tensor
from penstock.query.indexes._kind import KEY, Run, TableLayout
from penstock.query.indexes._kmeans import Float32Array, Int32Array, assign, kmeans, squares
from penstock.table import Int64Array, Reader
from penstock.types import SMALL_FLOATS

Metric: TypeAlias = Literal["cosine", "l2", "dot"]

FLOAT32_DTYPES = ("float32", "float16", "int8", "uint8", "int16", "uint16", *SMALL_FLOATS)
"""Element types whose values float32 has."""
_FLOAT64_DTYPES = ("float64", "int32", "uint32", "int64", "uint64")
MIN_SQUARE, MAX_SQUARE = 1e-30, 1e30
"""Squared norms outside of these bounds lose digits in float32."""
FAR_LIST = -1
"""The list of vectors too large for float32: every search scores them from the table."""

_MAX_LISTS = 65_536
_SAMPLES_PER_LIST = 64
_MAX_SAMPLE_BYTES = 256 << 20
_SAMPLE_RUNS = 2048
_SEED = 0
_LEVELS = 127
_MIN_SCALE = 1e-37
_CHUNK_ROWS = 8192


def vector_kind(field: Field) -> Tensor:
    """The kind of a column of vectors; raises `InvalidInputError` for another column."""
    kind = field.kind
    if (
        not isinstance(kind, Tensor)
        or len(kind.shape) != 1
        or not kind.shape[0]
        or kind.dtype not in (*FLOAT32_DTYPES, *_FLOAT64_DTYPES)
    ):
        raise InvalidInputError(
            f"column {field.name!r} holds {kind} and not vectors: vector search needs a column of numbers of one fixed "
            "length, such as Embedding(128)"
        )
    return kind


def check_metric(metric: str) -> Metric:
    """The metric of a name; raises `InvalidInputError`."""
    for known in get_args(Metric):
        if metric == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInputError(f"{metric!r} is not a metric of vectors; choose cosine, l2 or dot")


class Codes(NamedTuple):
    """Quantised vectors: about `centroid + scale * code`."""

    codes: npt.NDArray[np.int8]
    scales: Float32Array
    squares: Float32Array
    """Squared norms of the differences, before they were rounded."""


@dataclass(frozen=True)
class VectorKind:
    """An index of a column of vectors."""

    kind: Tensor
    metric: Metric
    lists: int | None
    """Number of lists; None for the square root of the number of rows."""

    name: ClassVar[str] = "vector"
    run_bytes: ClassVar[int] = 128 << 20
    rows_table: ClassVar[str | None] = None

    @classmethod
    def make(cls, field: Field, options: Mapping[str, Any]) -> "VectorKind":
        """Raises `InvalidInputError` for a column without vectors, or an option that does not fit."""
        unknown = options.keys() - {"metric", "lists"}
        if unknown:
            raise InvalidInputError(f"a vector index has no option {min(unknown)!r}; it has metric and lists")
        lists = options.get("lists")
        if lists is not None and (type(lists) is not int or not 1 <= lists <= _MAX_LISTS):
            raise InvalidInputError(f"the lists of a vector index are a number from 1 to {_MAX_LISTS}, not {lists!r}")
        return cls(vector_kind(field), check_metric(options.get("metric", "cosine")), lists)

    @property
    def options(self) -> Mapping[str, Any]:
        return {"metric": self.metric} if self.lists is None else {"metric": self.metric, "lists": self.lists}

    @property
    def length(self) -> int:
        """Elements of a vector."""
        return self.kind.stored_shape[0]

    @property
    def tables(self) -> Mapping[str, TableLayout]:
        norm = [("norm", pa.float32())] if self.metric == "l2" else []
        columns = [(KEY, pa.int32()), ("row_id", pa.int64()), ("scale", pa.float32()), *norm]
        schema = pa.schema([*columns, ("code", pa.list_(pa.int8(), self.length))])
        return {"lists": TableLayout(schema, page_bytes=1 << 20, split_at_keys=True, compression=None)}

    def objects(self, reader: Reader, field: Field, positions: Int64Array) -> Mapping[str, pa.Table]:
        count = self.lists or min(_MAX_LISTS, max(1, round(len(positions) ** 0.5)))
        most = max(count, min(_SAMPLES_PER_LIST * count, _MAX_SAMPLE_BYTES // (4 * self.length)))
        sample = reader.arrow([field.name], sample_positions(positions, most))[field.name]
        parts = [self.vectors(chunk)[0] for chunk in sample.chunks]
        points = np.concatenate([np.zeros((0, self.length), np.float32), *parts])
        if not len(points):
            points = np.zeros((1, self.length), np.float32)
        centroids = kmeans(points, count, seed=_SEED, spherical=self.metric == "cosine")
        return {"centroids": pa.table({"centroid": _fixed_lists(centroids)})}

    def run(self, row_ids: Int64Array, values: pa.Array, objects: Mapping[str, pa.Table]) -> Run:
        centroids = self.centroids(objects["centroids"])
        vectors, rows, far = self.vectors(values)
        lists = assign(vectors, centroids)
        found = quantise(vectors, lists, centroids)
        keys = np.concatenate([np.full(len(far), FAR_LIST, np.int32), lists])
        ids = np.concatenate([row_ids[far], row_ids[rows]])
        order = np.lexsort((ids, keys))
        nothing = np.zeros(len(far), np.float32)
        columns = {
            KEY: keys,
            "row_id": ids,
            "scale": np.concatenate([nothing, found.scales]),
            "norm": np.concatenate([nothing, found.squares]),
            "code": np.concatenate([np.zeros((len(far), self.length), np.int8), found.codes]),
        }
        schema = self.tables["lists"].schema
        arrays = {name: columns[name][order] for name in schema.names}
        return Run({"lists": pa.table({**arrays, "code": _fixed_lists(arrays["code"])}, schema)})

    def pack(self, table: str, entries: pa.Table) -> pa.Table:  # noqa: ARG002
        return entries

    def entry_rows(self, table: str, entries: pa.RecordBatch) -> Int64Array:  # noqa: ARG002
        return np.asarray(entries.column("row_id"), np.int64)

    def vectors(self, array: pa.Array) -> tuple[Float32Array, Int64Array, Int64Array]:
        """The vectors of a column as they are indexed, their rows, and the rows of those too large for float32."""
        values = self.kind.view(array)
        with np.errstate(all="ignore"):
            found: Float32Array = values.astype(np.float32)
            norms = squares(found)
        usable = (norms <= MAX_SQUARE) & ((norms >= MIN_SQUARE) | (self.metric != "cosine"))
        valid = np.asarray(array.is_valid())
        odd = np.flatnonzero(valid & ~usable)
        usable &= valid
        far = odd[:0]
        if len(odd):
            wide = values[odd].astype(np.float64)
            largest = np.abs(wide).max(axis=1)
            odd, wide, largest = (part[np.isfinite(largest) & (largest > 0)] for part in (odd, wide, largest))
            if self.metric == "cosine":
                found[odd] = wide / largest[:, None]
                norms[odd], usable[odd] = squares(found[odd]), True
            else:
                far = odd
        if not usable.all():
            found = found[usable]
        if self.metric == "cosine":
            found /= np.sqrt(norms[usable])[:, None]
        return found, np.flatnonzero(usable), far

    def centroids(self, table: pa.Table) -> Float32Array:
        """The centroids of the lists; raises `CorruptError` for a table that has none."""
        column = table["centroid"].combine_chunks() if table.column_names == ["centroid"] else None
        if column is None or column.type != pa.list_(pa.float32(), self.length) or not len(column):
            raise CorruptError(f"a vector index has no centroids of length {self.length}; drop it and create it again")
        values = column.flatten()
        found: Float32Array = np.asarray(values, np.float32).reshape(-1, self.length)
        if len(found) != len(column) or values.null_count or not np.isfinite(found).all():
            raise CorruptError("a centroid of a vector index has no finite value; drop it and create it again")
        return found


def sample_positions(positions: Int64Array, count: int) -> Int64Array:
    """At most `count` positions from all parts, in runs of consecutive ones: few of a large column's pages are read."""
    if len(positions) <= count:
        return positions
    runs = min(count, _SAMPLE_RUNS)
    edges = np.linspace(0, len(positions), runs + 1).astype(np.int64)
    length = count // runs
    free = np.maximum(np.diff(edges) - length, 0)
    starts = edges[:-1] + np.random.default_rng(_SEED).integers(0, free + 1)
    chosen: Int64Array = (starts[:, None] + np.arange(length)).reshape(-1)
    return positions[chosen]


def quantise(vectors: Float32Array, lists: Int32Array, centroids: Float32Array) -> Codes:
    """Quantise vectors against the centroids of their lists; an element is off by at most half its vector's scale."""
    codes = np.empty(vectors.shape, np.int8)
    scales, norms = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), _CHUNK_ROWS):
        part = slice(first, first + _CHUNK_ROWS)
        difference = vectors[part] - centroids[lists[part]]
        norms[part] = squares(difference)
        scale = np.maximum(difference.max(axis=1), -difference.min(axis=1)) / np.float32(_LEVELS)
        scales[part] = scale
        difference *= (1 / np.where(scale > _MIN_SCALE, scale, 1))[:, None]
        codes[part] = np.rint(difference, out=difference)
    return Codes(codes, scales, norms)


def _fixed_lists(values: npt.NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
