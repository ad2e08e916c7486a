"""Random access to rows by index, for loaders that choose rows themselves."""

from collections.abc import Sequence

import numpy as np

from penstock.engine._options import DecodeOptions
from penstock.engine.assembly import Columns, MixedColumns, MixedMemory, Part, new_collator
from penstock.engine.planning import Layout
from penstock.plan import ComposedRows, MixtureOrder, Rows, take_positions
from penstock.table import Int64Array, RandomRowReader, Reader, VersionLease


class RowReader:
    """Reads rows of a selection by index. One call fetches the pages of all its rows together, each page once."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: Rows, decode: DecodeOptions, *, lease: bool) -> None:
        """With `lease`, this process protects the version from vacuum, also for workers that read copies of this."""
        decode.check(reader.snapshot.schema)
        self._rows = rows.samples if isinstance(rows, ComposedRows) else rows
        layout = Layout(reader.snapshot.schema, names, rows)
        self._collator = new_collator(reader, layout, decode)
        self._random_reader = RandomRowReader(reader.store)
        self._lease = VersionLease([reader])
        if lease:
            self._lease.acquire(block=True)  # or a fork could meet the thread inside a request

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Sequence[int]) -> Columns:
        """Columns of the rows at `indices`, in that order; raises `IndexError`, or the error of the first bad row."""
        positions = take_positions(self._rows, _row_numbers(indices, len(self)))
        columns, bad = self._collator.rows(positions, self._random_reader)
        for index, error in bad.items():
            error.add_note(f"in row {int(positions[index])} of the table")
            raise error
        return columns


class MixedRowReader:
    """Reads rows of a mixture by index, each from the reader of its source."""

    def __init__(self, readers: Sequence[RowReader], columns: MixedColumns, order: MixtureOrder, rows: int) -> None:
        """Reads the first `rows` rows of an order."""
        self._readers, self._columns, self._order, self._rows = readers, columns, order, rows

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Sequence[int]) -> Columns:
        """Columns of the rows at `indices`, in that order; raises `IndexError`, or the error of the first bad row."""
        located = [self._order.rows(row, row + 1) for row in _row_numbers(indices, len(self)).tolist()]
        sources, numbers = np.array(located, np.int64).reshape(-1, 2).T
        parts: list[Part] = []
        for source in np.unique(sources).tolist() or [0]:  # without rows there are columns nevertheless
            here, reader = np.flatnonzero(sources == source), self._readers[source]
            parts.append(Part(source, here, reader.read((numbers[here] % len(reader)).tolist())))
        return self._columns.join(parts, MixedMemory(len(located)))


def _row_numbers(indices: Sequence[int], rows: int) -> Int64Array:
    """Numbers of rows, of which negative indices count from the end; raises `IndexError`."""
    numbers = np.asarray(indices, np.int64)
    outside = (numbers < -rows) | (numbers >= rows)
    if outside.any():
        raise IndexError(f"there is no row {int(numbers[outside][0])}: there are {rows}")
    return numbers % max(1, rows)
