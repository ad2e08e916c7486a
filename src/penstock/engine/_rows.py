"""Rows by their numbers, for loaders that choose rows themselves."""

from collections.abc import Sequence

import numpy as np

from penstock.device import Outbox
from penstock.engine._collate import Collator
from penstock.engine._decode import Columns, DecodeOptions
from penstock.engine._slab import Layout
from penstock.table import PickedRows, Reader, Rows, rows_at


class RowReader:
    """Reads any rows of a selection, many at a time: pages are fetched together, and each once."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: range | Rows, decode: DecodeOptions) -> None:
        decode.check(reader.snapshot.schema)
        self._reader, self._rows = reader, rows
        layout = Layout(reader.snapshot.schema, names)
        self.outbox = Outbox()
        """Where arrays that are worth it come from."""
        self._collator = Collator(reader, layout, decode, self.outbox.empty)
        self._picked = PickedRows(reader.store)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, numbers: Sequence[int]) -> Columns:
        """Columns of some rows, in the order asked; raises where one is bad."""
        wanted = np.asarray(numbers, np.int64)
        outside = (wanted < -len(self)) | (wanted >= len(self))
        if outside.any():
            raise IndexError(f"there is no row {int(wanted[outside][0])}: there are {len(self)}")
        positions = rows_at(self._rows, wanted % max(1, len(self)))
        found, bad = self._collator.rows(positions, self._picked)
        for index, error in bad.items():
            error.add_note(f"in row {int(positions[index])} of the table")
            raise error
        return found
