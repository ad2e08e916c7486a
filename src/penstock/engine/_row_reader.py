"""Random access to rows by index, for loaders that choose rows themselves."""

from collections.abc import Sequence

import numpy as np

from penstock.engine._lease import VersionLease
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly import Collator, Columns
from penstock.engine.planning import Layout
from penstock.table import Int64Array, RandomRowReader, Reader, take_positions


class RowReader:
    """Reads rows of a selection by index. One call fetches the pages of all its rows together, each page once."""

    def __init__(
        self, reader: Reader, names: Sequence[str], rows: range | Int64Array, decode: DecodeOptions, *, lease: bool
    ) -> None:
        """With `lease`, this process protects the version from vacuum, also for workers that read copies of this."""
        decode.check(reader.snapshot.schema)
        self._reader, self._rows = reader, rows
        layout = Layout(reader.snapshot.schema, names)
        self._collator = Collator(reader, layout, decode)
        self._random_reader = RandomRowReader(reader.store)
        self._lease = VersionLease(reader)
        if lease:
            self._lease.acquire(block=True)  # or a fork could meet the thread inside a request

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Sequence[int]) -> Columns:
        """Columns of the rows at `indices`, in that order; raises `IndexError`, or the error of the first bad row."""
        wanted = np.asarray(indices, np.int64)
        outside = (wanted < -len(self)) | (wanted >= len(self))
        if outside.any():
            raise IndexError(f"there is no row {int(wanted[outside][0])}: there are {len(self)}")
        positions = take_positions(self._rows, wanted % max(1, len(self)))
        columns, bad = self._collator.rows(positions, self._random_reader)
        for index, error in bad.items():
            error.add_note(f"in row {int(positions[index])} of the table")
            raise error
        return columns
