"""Answer a filter by scalar indexes.

A filter of Arrow is not taken apart: Arrow itself says which pages, then which values, may match, given what is known
of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.fs as pfs

from penstock.query.indexes._kind import KEY
from penstock.query.indexes._open import OpenIndex, open_index
from penstock.query.indexes._pages import PageRead, read_pages_of
from penstock.query.indexes._scalar import ScalarKind, native_type
from penstock.table import Int64Array, Reader

_MAX_SHARE = 0.1
"""An index that leaves more than this share of the rows is not used: to read the column costs less."""
_MAX_VALUES = 4096
_EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ScalarAnswer:
    """What an index knows about a filter; every match is in one of the two."""

    matches: Int64Array
    """Ascending positions of rows that match."""
    unchecked: Int64Array
    """Ascending positions of rows that may match: the filter decides."""
    indexes: tuple[str, ...]
    """The names of the indexes used."""
    pages: tuple[PageRead, ...]
    """The pages of the indexes that were read."""


def answer_filter(reader: Reader, filter: pc.Expression, columns: Sequence[str]) -> ScalarAnswer | None:
    """What the scalar indexes of a version know about a filter that refers to `columns`; None if they do not help."""
    fields = [reader.snapshot.schema[name] for name in columns if name in reader.snapshot.schema]
    if len(fields) < len(columns):
        return None  # computed columns have no index
    schema = pa.schema([(field.name, native_type(field)) for field in fields])
    found: list[ScalarAnswer] = []
    for field in fields:
        index = open_index(reader, field, "scalar")
        answer = None if index is None else _IndexFilter(index, filter, schema).answer()
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
    """A filter, and an index of one of its columns."""

    def __init__(self, index: OpenIndex, filter: pc.Expression, schema: pa.Schema) -> None:
        assert isinstance(index.kind, ScalarKind)
        self._index, self._kind, self._filter, self._schema = index, index.kind, filter, schema
        self._column = pc.field(self._kind.column)
        self._exact = len(schema) == 1
        """Whether values of the column decide."""

    def answer(self) -> ScalarAnswer | None:
        index = self._index
        limit = max(1024, int(_MAX_SHARE * index.reader.snapshot.live))
        if len(index.uncovered) > limit:
            return None
        reads = []
        for segment in index.segments:
            values, missing = segment.tables["values"], segment.tables["missing"]
            reads.append(PageRead(values, self._surviving_pages(values.directory)))
            reads.append(PageRead(missing, range(len(missing))))
        if sum(read.table.rows_of(read.pages) for read in reads) > 4 * limit:  # of which fewer match
            return None
        keep_nulls = bool(self._survivors([self._column.is_null()]))
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
        distinct = pc.unique(keys)
        if len(distinct) > _MAX_VALUES:
            return np.asarray(ids, np.int64)
        kept = self._survivors([self._column == value for value in distinct])
        return np.asarray(ids.filter(pc.is_in(keys, distinct.take(pa.array(kept, pa.int64())))), np.int64)

    def _surviving_pages(self, directory: pa.Table) -> list[int]:
        low, high = (self._kind.as_column(directory[name].combine_chunks()) for name in (KEY, "last"))
        known = [(self._column >= least) & (self._column <= most) for least, most in zip(low, high, strict=True)]
        return self._survivors(known)

    def _survivors(self, known: Sequence[pc.Expression]) -> list[int]:
        """The indices of guarantees under which the filter may be true; Arrow decides, and nothing is read."""
        ipc, files = pds.IpcFileFormat(), pfs.LocalFileSystem()
        parts = [ipc.make_fragment(f"/{n}", files, partition_expression=one) for n, one in enumerate(known)]
        dataset = pds.FileSystemDataset(parts, self._schema, ipc, files)
        return [int(part.path[1:]) for part in dataset.get_fragments(self._filter)]


def _ascending(parts: Iterable[Int64Array]) -> Int64Array:
    found = np.unique(np.concatenate(list(parts)))
    return found[found >= 0]
