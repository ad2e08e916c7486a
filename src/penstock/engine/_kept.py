"""Pages of light columns, read once and kept: labels of a million pictures are eight megabytes, in a few requests."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import DataFile, Field
from penstock.storage import Store
from penstock.table import PageRequest, Pages, Wanted, all_numbers, read_pages

_GROUP_BYTES = 1 << 20

Runs = list[tuple[int, memoryview]]


class KeptPages:
    """Reads files in groups of pages, each once, for whoever needs a page of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[tuple[str, int], _Group] = {}
        self._lock = Lock()

    def groups(self, request: PageRequest) -> Iterator[PageRequest]:
        """The groups that hold what a request asks for."""
        file = request.file
        per_group = _pages_of_group(file)
        if isinstance(request.pages, range):
            numbers: Sequence[int] = range(request.pages[0] // per_group, request.pages[-1] // per_group + 1)
        else:
            numbers = sorted({page // per_group for page in request.pages})
        for number in numbers:
            first = number * per_group
            yield PageRequest(file, range(first, min(first + per_group, len(file.offsets) - 1)))

    def found(self, group: PageRequest) -> Runs | None:
        """The pages of a group, if they are there."""
        kept = self._groups.get((group.file.id, group.pages[0]))
        return None if kept is None else kept.runs

    def read(self, group: PageRequest) -> tuple[Runs, bool]:
        """The pages of a group, and whether they had to be fetched."""
        with self._lock:
            kept = self._groups.setdefault((group.file.id, group.pages[0]), _Group())
        with kept.lock:
            if kept.runs is not None:
                return kept.runs, False
            kept.runs = read_pages(self._store, group)
            return kept.runs, True

    def numbers(self, field: Field, want: Wanted) -> npt.NDArray[Any] | None:
        """Rows of a column of numbers as a view, if they follow each other and one group that is there has them."""
        if want.together is None:
            return None
        start, end = want.together.start, want.together.stop
        files = want.fragment.files_between(field.id, start, end)
        if len(files) != 1:
            return None
        file = files[0]
        per_group = _pages_of_group(file)
        first = bisect_right(file.row_ends, start - file.row_start) // per_group * per_group
        last = min(first + per_group, len(file.row_ends))
        group_start = file.row_start + (file.row_ends[first - 1] if first else 0)
        kept = self._groups.get((file.id, first))
        if kept is None or kept.runs is None or end > file.row_start + file.row_ends[last - 1]:
            return None
        if field.id not in kept.numbers:
            rows = Wanted(want.fragment, np.arange(group_start, file.row_start + file.row_ends[last - 1]))
            pages = Pages()
            pages.add_all(file, kept.runs)
            kept.numbers[field.id] = all_numbers(field, [rows], pages)
        found = kept.numbers[field.id]
        return None if found is None else found[start - group_start : end - group_start]


class _Group:
    def __init__(self) -> None:
        self.runs: Runs | None = None
        self.numbers: dict[int, npt.NDArray[Any] | None] = {}
        """Columns of numbers, by field id, once somebody has asked; None where pages must be parsed."""
        self.lock = Lock()


def _pages_of_group(file: DataFile) -> int:
    offsets = file.offsets
    return max(1, _GROUP_BYTES * (len(offsets) - 1) // max(1, offsets[-1] - offsets[0]))
