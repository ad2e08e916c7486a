"""Rows here and there, of columns of numbers in local files.

A page is read whole and verified when a row of it is wanted for the first time; after that a row costs its own bytes.
Files never change, and what is local is not spoiled on the way: reading 256 KiB to check 2 KiB again would cost a
hundred times as much as the row. A store that is asked over a network gives and verifies whole pages every time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError, NotFoundError
from penstock.format import DataFile, Field, Fragment, crc32c
from penstock.format.kinds import Label, Tensor
from penstock.storage import Store
from penstock.table._pages import NUMBER, Empty, PageRequest, Rows, Wanted, all_numbers, fetch, read_pages

_MOST_PAGES = 1 << 22
_LIGHT_BYTES, _MOST_LIGHT_BYTES = 1 << 20, 64 << 20


class PickedRows:
    """Remembers which pages have been verified; for one process, and one thread of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._room = bytearray()
        self._known: dict[tuple[int, int], _Column | None] = {}
        self._known_pages = 0
        self._light: dict[tuple[int, int], npt.NDArray[Any] | None] = {}
        self._light_bytes = 0

    @property
    def serves(self) -> bool:
        """Whether the store is local, so that this is worth it."""
        return self._store.fan_out == 1

    def numbers(
        self, field: Field, wanted: Sequence[Wanted], places: Rows, out_rows: int, empty: Empty
    ) -> npt.NDArray[Any] | None:
        """One column of some rows, each in its place of an array of so many rows; None where a page must be parsed."""
        kind = NUMBER if isinstance(field.kind, Label) else field.kind
        if not isinstance(kind, Tensor) or not field.stored_bytes or not wanted:
            return None
        if max(want.fragment.rows for want in wanted) * field.stored_bytes <= _LIGHT_BYTES:
            return self._light_numbers(field, wanted, places, out_rows)
        found = empty((out_rows, *kind.stored_shape), kind.element.stored)
        out = found.reshape(out_rows, -1).view(np.uint8)
        done = 0
        for want in wanted:
            if not self._fill(field.id, want, places[done : done + len(want.rows)], out):
                return None
            done += len(want.rows)
        return kind.element.from_stored(found)

    def _light_numbers(
        self, field: Field, wanted: Sequence[Wanted], places: Rows, out_rows: int
    ) -> npt.NDArray[Any] | None:
        """The same where a call of the system for each row would cost more than to keep all rows of the fragments."""
        kept = [self._all_of(field, want.fragment) for want in wanted]
        if kept[0] is None:
            return None
        found, done = np.empty((out_rows, *kept[0].shape[1:]), kept[0].dtype), 0
        for want, values in zip(wanted, kept, strict=True):
            if values is None:
                return None
            found[places[done : done + len(want.rows)]] = values[want.rows]
            done += len(want.rows)
        return found

    def _all_of(self, field: Field, fragment: Fragment) -> npt.NDArray[Any] | None:
        key = fragment.id, field.id
        if key not in self._light:
            want = Wanted(fragment, np.arange(fragment.rows))
            try:
                values = all_numbers(field, [want], fetch(self._store, [want], [field.id], max_workers=1))
            except (CorruptError, NotFoundError):
                values = None  # the pages that are wanted may be whole
            self._light_bytes += 0 if values is None else values.nbytes
            if self._light_bytes > _MOST_LIGHT_BYTES:
                self._light.clear()
                self._light_bytes = 0
            self._light[key] = None if values is None else values.copy()  # or whole pages would be kept
        return self._light[key]

    def _fill(self, field_id: int, want: Wanted, places: Rows, out: npt.NDArray[np.uint8]) -> bool:
        column = self._column(want.fragment, field_id)
        if column is None:
            return False
        data, width = out.reshape(-1).data, out.shape[1]
        pages = np.searchsorted(column.first_rows, want.rows, side="right") - 1
        at = column.starts[pages] + (want.rows - column.first_rows[pages]) * width
        known = column.verified[pages]
        parts: list[tuple[str, int, memoryview]] = []
        for page, start, place, verified in zip(
            pages.tolist(), at.tolist(), (places * width).tolist(), known.tolist(), strict=True
        ):
            row = data[place : place + width]
            if verified:
                parts.append((column.keys[page], start, row))
            else:
                self._read_verified(*column.place(page), start, row)
        column.verified[pages] = True
        self._store.read_scattered(parts)
        return True

    def _read_verified(self, file: DataFile, page: int, at: int, place: memoryview) -> None:
        """Read a row with the page that it is in, and check the page."""
        start, end, after = file.offsets[page], file.offsets[page + 1], at + len(place)
        if len(self._room) < end - start:
            self._room = bytearray(end - start)
        rest = memoryview(self._room)[: end - start]
        head, tail = rest[: at - start], rest[after - start :]
        self._store.read_into(file.key, start, (head, place, tail))
        if crc32c(tail, crc32c(place, crc32c(head))) != file.page_crcs[page]:
            [(_, data)] = read_pages(self._store, PageRequest(file, (page,)))  # asks once more, or says what is wrong
            place[:] = data[at - start : after - start]

    def _column(self, fragment: Fragment, field_id: int) -> "_Column | None":
        key = fragment.id, field_id
        if key not in self._known:
            if self._known_pages > _MOST_PAGES:
                self._known.clear()
                self._known_pages = 0
            column = self._known[key] = _Column.of(fragment, field_id)
            self._known_pages += 1 if column is None else len(column.keys)
        return self._known[key]


@dataclass(frozen=True)
class _Column:
    """The pages that hold one column of a fragment, one behind the other."""

    files: Sequence[DataFile]
    keys: list[str]
    """The file of each page."""
    first_rows: Rows
    starts: Rows
    """Where in its file the values of each page start."""
    verified: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, fragment: Fragment, field_id: int) -> "_Column | None":
        """None where a page must be parsed."""
        files = fragment.files_of(field_id)
        if not files:
            return None
        inside = np.concatenate([file.value_starts[:, file.fields.index(field_id)] for file in files])
        if (inside < 0).any():
            return None
        return cls(
            files,
            [file.key for file in files for _ in file.row_ends],
            np.concatenate([file.row_start + file.page_ends - file.page_rows for file in files]).astype(np.int64),
            np.concatenate([file.offsets[:-1] for file in files]) + inside,
            np.zeros(len(inside), bool),
        )

    def place(self, page: int) -> tuple[DataFile, int]:
        """The file that holds a page, and which of its pages it is."""
        for file in self.files:
            if page < len(file.row_ends):
                return file, page
            page -= len(file.row_ends)
        raise IndexError(page)
