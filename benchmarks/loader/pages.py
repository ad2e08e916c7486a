"""Which pages hold which rows, of a table in which every row is where it was appended."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import penstock
from benchmarks.loader.nginx import Answer


@dataclass(frozen=True)
class Pages:
    """The pages of one file: where they start in the file, and with which row of the table."""

    offsets: npt.NDArray[np.int64]
    """One more than there are pages: where the last one ends."""
    rows: npt.NDArray[np.int64]
    """The same for rows."""

    def holding(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which pages hold any of these rows, given in rising order."""
        inside = np.searchsorted(positions, self.rows)
        return np.diff(inside) > 0


def pages(ds: penstock.Dataset) -> dict[str, Pages]:
    """The pages of each data file, by the last part of its key."""
    reader = ds._reader  # page boundaries are private; only this benchmark needs them
    found = {}
    base = 0
    for fragment in reader.tree.fragments(reader.snapshot.nodes):
        for file in fragment.files:
            rows = np.concatenate(([0], np.cumsum(file.page_rows, dtype=np.int64)))
            found[file.key.rpartition("/")[2]] = Pages(file.page_offsets, base + file.row_start + rows)
        base += fragment.rows
    return found


def count_holding(files: dict[str, Pages], positions: npt.NDArray[np.int64]) -> int:
    """How many pages hold these rows."""
    rising = np.sort(positions)
    return sum(int(file.holding(rising).sum()) for file in files.values())


@dataclass(frozen=True)
class Fetched:
    """Bytes that requests brought."""

    needed: int
    """In pages that hold a wanted row."""
    again: int
    """In such pages that had come already: requests that were late are repeated."""
    other: int
    """In other pages."""


def fetched(files: dict[str, Pages], answers: Iterable[Answer], positions: npt.NDArray[np.int64]) -> Fetched:
    """Tell what was needed for some rows from what was not."""
    rising = np.sort(positions)
    held = {name: file.holding(rising) for name, file in files.items()}
    came = {name: np.zeros(len(pages), bool) for name, pages in held.items()}
    needed = again = other = 0
    for got in answers:
        name = got.key.rpartition("/")[2]
        if name not in files:
            continue
        starts, ends = files[name].offsets[:-1], files[name].offsets[1:]
        inside = (starts < got.end) & (ends > got.start)
        sizes = np.minimum(ends, got.end) - np.maximum(starts, got.start)
        wanted = inside & held[name]
        again += int(sizes[wanted & came[name]].sum())
        needed += int(sizes[wanted & ~came[name]].sum())
        other += got.bytes - int(sizes[wanted].sum())
        came[name] |= inside
    return Fetched(needed, again, other)
