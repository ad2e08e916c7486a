"""Answer a filter by scalar indexes.

The bounds of its pages, then its values, decide which entries may match. If the filter has no other column, the values
alone decide, and the column is not read.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.query.indexes._kind import KEY
from penstock.query.indexes._open import OpenIndex, open_index
from penstock.query.indexes._pages import PageRead, read_pages_of
from penstock.query.indexes._scalar import ScalarKind
from penstock.table import Int64Array, Reader, sorted_distinct
from penstock.table.filters import ColumnBounds, Term, field_names, may_match, parse_expression, widened

_MAX_SHARE = 0.1
"""An index that leaves more than this share of the rows is not used: to read the column costs less."""
_MAX_PAGE_ROWS = 1 << 14
"""So many rows of pages are always read: not all of them match."""
_MIN_ROWS = 1024
_EMPTY = np.zeros(0, np.int64)


class ScalarAnswer(NamedTuple):
    """What an index knows about a filter; every match is in one of the two."""

    matches: Int64Array
    """Ascending positions of rows that match."""
    unchecked: Int64Array
    """Ascending positions of rows that may match: the filter decides."""
    indexes: tuple[str, ...]
    """The names of the indexes used."""
    pages: tuple[PageRead, ...]
    """The pages of the indexes that were read."""


def answer_filter(reader: Reader, filter: pc.Expression) -> ScalarAnswer | None:
    """What the scalar indexes of a version know about a filter; None if they do not help."""
    term = parse_expression(filter)
    columns = set() if term is None else field_names(term)
    schema = reader.snapshot.schema
    if term is None or not columns or any(name not in schema for name in columns):
        return None
    found: list[ScalarAnswer] = []
    for name in sorted(columns):
        index = open_index(reader, schema[name], ScalarKind.name)
        answer = None if index is None else _IndexFilter(index, filter, term, exact=len(columns) == 1).answer()
        if answer is not None:
            found.append(answer)
    if len(found) < 2:
        return found[0] if found else None
    unchecked = found[0].unchecked
    for other in found[1:]:
        unchecked = np.intersect1d(unchecked, other.unchecked, assume_unique=True)
    names = tuple(name for answer in found for name in answer.indexes)
    return ScalarAnswer(_EMPTY, unchecked, names, tuple(page for answer in found for page in answer.pages))


class _IndexFilter:
    """A filter, and an index of one of its columns; `exact` if it has no other column."""

    def __init__(self, index: OpenIndex, filter: pc.Expression, term: Term, *, exact: bool) -> None:
        assert isinstance(index.kind, ScalarKind)
        self._index, self._kind, self._filter, self._term, self._exact = index, index.kind, filter, term, exact

    def answer(self) -> ScalarAnswer | None:
        index = self._index
        limit = max(_MIN_ROWS, int(_MAX_SHARE * index.reader.snapshot.live))
        if len(index.uncovered) > limit:
            return None
        reads = []
        for segment in index.segments:
            values, missing = segment.tables["values"], segment.tables["missing"]
            reads.append(PageRead(values, self._surviving_pages(values.directory)))
            reads.append(PageRead(missing, range(len(missing))))
        if sum(read.table.rows_of(read.pages) for read in reads) > max(limit, _MAX_PAGE_ROWS):
            return None
        nothing = pa.nulls(1, self._kind.type)
        keep_nulls = bool(self._survives(nothing, nothing)[0])
        pages = read_pages_of(reads)
        matches, unchecked = [_EMPTY], [index.uncovered]
        for number in range(len(index.segments)):
            for batch in pages[2 * number]:
                found = index.positions(number, self._matching(batch))
                (matches if self._exact else unchecked).append(found)
            for batch in pages[2 * number + 1]:
                ids, nan = np.asarray(batch.column(KEY)), np.asarray(batch.column("nan"))
                unchecked.append(index.positions(number, ids if keep_nulls else ids[nan]))
        certain, open_ = _ascending(matches), _ascending(unchecked)
        if len(certain) + len(open_) > limit:
            return None
        return ScalarAnswer(certain, open_, (index.name,), tuple(reads))

    def _matching(self, batch: pa.RecordBatch) -> Int64Array:
        """The row ids of the entries of a page that match, or, if the filter has other columns too, may match."""
        keys, ids = self._kind.as_column(batch.column(KEY)), batch.column("row_id")
        if self._exact:
            table = pa.table({self._kind.column: keys, "row_id": ids})
            return np.asarray(table.filter(self._filter)["row_id"], np.int64)
        return np.asarray(ids, np.int64)[self._survives(keys, keys)]

    def _surviving_pages(self, directory: pa.Table) -> list[int]:
        low, high = (self._kind.as_column(directory[name].combine_chunks()) for name in (KEY, "last"))
        found: list[int] = np.flatnonzero(self._survives(low, high)).tolist()
        return found

    def _survives(self, low: pa.Array, high: pa.Array) -> npt.NDArray[np.bool_]:
        """Whether the filter may be true for a value between bounds, of which null is the least."""
        nulls, values = np.asarray(low.is_null()), np.asarray(high.is_valid())
        if pa.types.is_floating(low.type):
            low = widened(low.to_numpy(zero_copy_only=False), low=True)
            high = widened(high.to_numpy(zero_copy_only=False), low=False)
        bounds = ColumnBounds(low, high, nulls=nulls, values=values)
        return may_match(self._term, {self._kind.column: bounds}, len(low))


def _ascending(parts: Iterable[Int64Array]) -> Int64Array:
    found = sorted_distinct(np.concatenate(list(parts)))
    return found[found >= 0]
