"""Rows here and there, of columns of numbers in local files.

A page is read whole and verified when a row of it is wanted for the first time; after that a row costs its own bytes.
Files never change, and what is local is not spoiled on the way: reading 256 KiB to check 2 KiB again would cost a
hundred times as much as the row. A store that is asked over a network gives and verifies whole pages every time.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import DataFile, Field
from penstock.format.kinds import Label, Tensor
from penstock.storage import Store
from penstock.table._pages import NUMBER, PageRequest, Wanted, read_pages

_MOST_FILES = 1 << 16


class PickedRows:
    """Remembers which pages have been verified; for one process, and one thread of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], _Column] = {}

    @property
    def serves(self) -> bool:
        """Whether the store is local, so that this is worth it."""
        return self._store.fan_out == 1

    def numbers(self, field: Field, wanted: Sequence[Wanted]) -> npt.NDArray[Any] | None:
        """One column of some rows; None where a page must be parsed."""
        kind = NUMBER if isinstance(field.kind, Label) else field.kind
        if not isinstance(kind, Tensor) or not field.stored_bytes:
            return None
        found = np.empty((sum(len(want.rows) for want in wanted), *kind.stored_shape), kind.element.stored)
        out = found.reshape(-1).view(np.uint8).data
        done = 0
        for want in wanted:
            size = len(want.rows) * field.stored_bytes
            if not self._fill(field.id, field.stored_bytes, want, out[done : done + size]):
                return None
            done += size
        return kind.element.from_stored(found)

    def _fill(self, field_id: int, width: int, want: Wanted, out: memoryview) -> bool:
        files = want.fragment.files_of(field_id)
        if not files:
            return False
        holders = np.searchsorted([file.row_start for file in files], want.rows, side="right") - 1
        done = 0
        parts: list[tuple[str, int, memoryview]] = []
        for row, holder in zip(want.rows.tolist(), holders.tolist(), strict=True):
            column, place = self._column(files[holder], field_id), out[done : done + width]
            page, start = column.find(row, width)
            if start < 0:
                return False
            if column.verified[page]:
                parts.append((column.key, start, place))
            else:
                column.verify(self._store, page, start, place)
            done += width
        self._store.read_scattered(parts)
        return True

    def _column(self, file: DataFile, field_id: int) -> "_Column":
        found = self._known.get((file.id, field_id))
        if found is None or found.file.row_start != file.row_start:
            if len(self._known) >= _MOST_FILES:
                self._known.clear()
            found = self._known[file.id, field_id] = _Column(file, field_id)
        return found


class _Column:
    """One column of a file."""

    __slots__ = ("file", "key", "starts", "verified")

    def __init__(self, file: DataFile, field_id: int) -> None:
        self.file, self.key = file, file.key
        self.starts: list[int] = file.value_starts[:, file.fields.index(field_id)].tolist()
        self.verified = bytearray(len(self.starts))

    def find(self, row: int, width: int) -> tuple[int, int]:
        """The page that has a row, and where in the file the row starts; -1 where the page must be parsed."""
        file = self.file
        row -= file.row_start
        page = bisect_right(file.row_ends, row)
        if self.starts[page] < 0:
            return page, -1
        return page, file.offsets[page] + self.starts[page] + (row - (file.row_ends[page - 1] if page else 0)) * width

    def verify(self, store: Store, page: int, start: int, out: memoryview) -> None:
        """Read and check a page, and fill in a row of it."""
        [(_, data)] = read_pages(store, PageRequest(self.file, range(page, page + 1)))
        at = start - self.file.offsets[page]
        out[:] = data[at : at + len(out)]
        self.verified[page] = 1
