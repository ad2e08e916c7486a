"""Scans as datasets of Arrow, which engines recognise by their class."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock.errors import InvalidInputError
from penstock.plan import take_positions
from penstock.query.scan._relation import Relation
from penstock.query.scan._scan import TableScan

_UNREADABLE = "a dataset of Penstock (Arrow's own scanner cannot read it: use its to_table, to_batches or scanner)"


def as_dataset(scan: TableScan) -> Any:
    """A scan as a `pyarrow.dataset.Dataset`."""
    own: Any = type(scan)
    cls = _dataset_class(own)
    dataset = cls(scan.schema, [_unreadable(scan.schema)])
    dataset.__dict__.update(scan.__dict__)
    return dataset


@cache
def _dataset_class(scan: Any) -> Any:
    from pyarrow.dataset import UnionDataset  # imports pandas, which takes long: only for those who ask questions

    # Code of Arrow that reads a dataset below Python reads that of the base class, and a dataset without one ends the
    # process: of the classes that can be made from Python, a union has the fewest methods to replace.
    return type("TableDataset", (_DatasetMethods, scan, UnionDataset), {"__init__": UnionDataset.__init__})


def _unreadable(schema: pa.Schema) -> Any:
    """A dataset that fails with a sentence when it is read."""
    import pyarrow.dataset

    ipc, files = pyarrow.dataset.IpcFileFormat(), pafs.LocalFileSystem()
    return pyarrow.dataset.FileSystemDataset([ipc.make_fragment(_UNREADABLE, files)], schema, ipc, files)


def _restored(relation: Relation, condition: pc.Expression | None) -> Any:
    return as_dataset(TableScan(relation, condition=condition))


class _DatasetMethods(TableScan):
    """The methods of a dataset that engines do not need, and users do."""

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self._relation, self._condition)

    @property
    def children(self) -> list[Any]:
        """There are none."""
        raise AttributeError("a dataset of Penstock has no children; get_fragments() gives its parts")

    def filter(self, expression: pc.Expression) -> Any:
        """The rows that match, as a dataset; filters add up."""
        if not isinstance(expression, pc.Expression):
            raise InvalidInputError(f"a filter is an expression of pyarrow.compute, not {expression!r}")
        return as_dataset(TableScan(self._relation, condition=self._combined(expression)))

    def take(
        self, indices: Any, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> pa.Table:
        """Rows by their index among those that match; raises `InvalidInputError` for an index outside of them."""
        if self._combined(filter) is not None:
            found = self.to_table(columns, filter)
            return found.take(pa.array(_checked(indices, found.num_rows)))
        rows = take_positions(self._relation.rows, _checked(indices, len(self._relation.rows)))
        return self.over(Relation(self._relation.reader, self._relation.columns, rows)).to_table(columns)

    def sort_by(self, sorting: Any, **options: Any) -> Any:
        """All rows in order, in memory."""
        return _in_memory(self).sort_by(sorting, **options)

    def join(self, right_dataset: Any, *arguments: Any, **options: Any) -> Any:
        """A join with another dataset, in memory."""
        return _in_memory(self).join(_in_memory(right_dataset), *arguments, **options)

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> Any:
        """A join with the nearest rows of another dataset, in memory."""
        return _in_memory(self).join_asof(_in_memory(right_dataset), *arguments, **options)

    def replace_schema(self, schema: pa.Schema) -> Any:  # noqa: ARG002
        """Refused: the columns are those of the table."""
        raise InvalidInputError(
            "the schema of a table's dataset cannot be replaced, nor can it be part of a union; select columns, or read"
            " it with to_table() and cast that"
        )


def _in_memory(dataset: Any) -> Any:
    import pyarrow.dataset

    return pyarrow.dataset.InMemoryDataset(dataset.to_table()) if isinstance(dataset, TableScan) else dataset


def _checked(indices: Any, count: int) -> Any:
    found = np.asarray(indices, np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < count:
        raise InvalidInputError(f"rows are taken by index from 0 to {count - 1}, not {found.min()} to {found.max()}")
    return found
