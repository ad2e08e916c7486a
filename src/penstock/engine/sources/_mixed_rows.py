"""Random access to the rows of a mixture."""

from collections.abc import Sequence

import numpy as np

from penstock.engine._row_reader import RowReader
from penstock.engine.assembly import SOURCE, Columns, MixedColumn, MixedMemory, join_columns
from penstock.plan import MixtureOrder


class MixedRowReader:
    """Reads rows of a mixture by index; see `RowReader`."""

    def __init__(
        self, readers: Sequence[RowReader], columns: Sequence[MixedColumn], order: MixtureOrder, rows: int
    ) -> None:
        """Reads the first `rows` rows of an order, each from the reader of its source."""
        self._readers, self._columns, self._order, self._rows = readers, columns, order, rows

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Sequence[int]) -> Columns:
        """Columns of the rows at `indices`, in that order; raises `IndexError`, or the error of the first bad row."""
        found = [self._locate(index) for index in indices]
        sources, numbers = np.array(found, np.int64).reshape(-1, 2).T
        parts = []
        for source in np.unique(sources).tolist():
            places = np.flatnonzero(sources == source)
            reader = self._readers[source]
            parts.append((places, reader.read((numbers[places] % len(reader)).tolist())))
        columns = join_columns(
            self._columns, parts, MixedMemory(len(found), lambda _name, shape, dtype: np.empty(shape, dtype))
        )
        return columns | {SOURCE: sources.copy()}

    def _locate(self, index: int) -> tuple[int, int]:
        if not -self._rows <= index < self._rows:
            raise IndexError(f"there is no row {index}: there are {self._rows}")
        sources, numbers = self._order.rows(index % self._rows, index % self._rows + 1)
        return int(sources[0]), int(numbers[0])
