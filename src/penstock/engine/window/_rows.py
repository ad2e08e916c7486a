"""Rows in the window, as a builder finds them: in this process, or in memory that processes share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.plan import groups
from penstock.table import Int64Array, RawColumn, RawColumns, RowPages, take
from penstock.types import Buffer

IN_BLOCK = -2
"""In place of the bounds of a value in shared memory: it is in the columns of its block. Not `NULL_BOUNDS`."""


class WindowRows(NamedTuple):
    """Where rows are in the window."""

    slab_rows: Int64Array
    """For each row its index in the slab."""
    blocks: Sequence[RawColumns]
    """Those that hold columns of variable size; none if there is no such column."""
    block_index: Int64Array
    """For each row the index of its block."""
    rows: Int64Array
    """For each row its index in that block."""
    files: Mapping[str, RowPages]
    """Columns of which some rows are read from files, and where these are."""
    bounds: Mapping[str, Int64Array] = {}
    """Columns of which a builder needs the encoded bytes alone: `ArenaValues.bounds` of each row, or `IN_BLOCK`."""
    memory: Callable[[int], npt.NDArray[np.uint8]] | None = None
    """The memory where these are, up to an end."""

    @classmethod
    def joined(cls, parts: Sequence["WindowRows"]) -> "WindowRows":
        """The rows of all parts, one after the other; none of them have `bounds`, which one reader alone gives."""
        firsts = np.cumsum([0, *(len(part.blocks) for part in parts)])[:-1].tolist()
        files = {
            name: RowPages.joined([part.files.get(name) or RowPages.none(len(part.slab_rows)) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.files)
        }
        return cls(
            np.concatenate([part.slab_rows for part in parts]),
            [block for part in parts for block in part.blocks],
            np.concatenate([part.block_index + first for part, first in zip(parts, firsts, strict=True)]),
            np.concatenate([part.rows for part in parts]),
            files,
        )

    def take(self, indices: Int64Array | slice) -> "WindowRows":
        """Some of the rows."""
        files = {name: pages.take(indices) for name, pages in self.files.items()}
        bounds = {name: each[indices] for name, each in self.bounds.items()}
        taken = self._replace(slab_rows=self.slab_rows[indices], files=files, bounds=bounds)
        if not self.blocks:
            return taken
        return taken._replace(block_index=self.block_index[indices], rows=self.rows[indices])

    def encoded(self, name: str, view: Callable[[Buffer], Any]) -> list[Any] | None:
        """The bytes of each value of a column; None if some are blobs or links."""
        if name in self.bounds:
            return None if (self.bounds[name] == IN_BLOCK).any() else self._values_at(self.bounds[name], view)
        values: list[Any] = [None] * len(self.rows)
        for number, here in groups(self.block_index):
            encoded = self.blocks[number].encoded(name, view)
            if encoded is None:
                return None
            for index, value in zip(here.tolist(), encoded.values(self.rows[here]), strict=True):
                values[index] = value
        return values

    def _values_at(self, bounds: Int64Array, view: Callable[[Buffer], Any]) -> list[Any]:
        """The bytes at some bounds; None for a null."""
        assert self.memory is not None
        memory = view(self.memory(int(bounds.max(initial=0))).data)
        return [None if start < 0 else memory[start:end] for start, end in bounds.tolist()]

    def raw_column(self, name: str) -> RawColumn:
        """A column of variable size."""
        arrays: list[pa.Array] = []
        references: list[pa.Array | None] = []
        places: list[Int64Array] = []
        for number, here in groups(self.block_index):
            places.append(here)
            if name in self.bounds and self.bounds[name][here[0], 0] != IN_BLOCK:
                values = self._values_at(self.bounds[name][here], memoryview)
                arrays.append(pa.array([None if each is None else bytes(each) for each in values], pa.binary()))
                references.append(None)
                continue
            cells = self.blocks[number].raw[name]
            assert cells.array is not None
            arrays.append(take(cells.array, self.rows[here]))
            references.append(None if cells.references is None else take(cells.references, self.rows[here]))
        order = np.concatenate(places)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return RawColumn.of_parts(arrays, references).take(back, np.empty)
