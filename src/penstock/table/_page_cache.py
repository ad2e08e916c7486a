"""Cache of pages of small columns: the labels of a million images are eight megabytes, in a few requests."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import DataFile, Field
from penstock.storage import Store
from penstock.table._gather import gather_dense
from penstock.table._pages import FragmentRows, PageRequest, PageRuns, Pages, read_pages

_GROUP_BYTES = 1 << 20


class PageCache:
    """Reads groups of pages, each once, for all threads that need them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[tuple[str, int], _Group] = {}
        self._lock = Lock()

    def groups(self, request: PageRequest) -> Iterator[PageRequest]:
        """The groups that cover a request."""
        file = request.file
        per_group = _pages_per_group(file)
        if isinstance(request.pages, range):
            numbers: Sequence[int] = range(request.pages[0] // per_group, request.pages[-1] // per_group + 1)
        else:
            numbers = sorted({page // per_group for page in request.pages})
        for number in numbers:
            first = number * per_group
            yield PageRequest(file, range(first, min(first + per_group, len(file.offsets) - 1)))

    def get(self, group: PageRequest) -> PageRuns | None:
        """The pages of a group, or None if they are not cached."""
        cached = self._groups.get((group.file.id, group.pages[0]))
        return None if cached is None else cached.pages

    def get_or_read(self, group: PageRequest) -> tuple[PageRuns, bool]:
        """The pages of a group, and whether they had to be fetched."""
        with self._lock:
            cached = self._groups.setdefault((group.file.id, group.pages[0]), _Group())
        with cached.lock:
            if cached.pages is not None:
                return cached.pages, False
            cached.pages = read_pages(self._store, group)
            return cached.pages, True

    def column(self, field: Field, want: FragmentRows) -> npt.NDArray[Any] | None:
        """Rows of a fixed-width column as a view; None unless they are contiguous in one cached group."""
        if want.contiguous is None:
            return None
        start, end = want.contiguous.start, want.contiguous.stop
        files = want.fragment.files_between(field.id, start, end)
        if len(files) != 1:
            return None
        file = files[0]
        per_group = _pages_per_group(file)
        first = bisect_right(file.row_ends, start - file.row_start) // per_group * per_group
        last = min(first + per_group, len(file.row_ends))
        group_start = file.row_start + (file.row_ends[first - 1] if first else 0)
        cached = self._groups.get((file.id, first))
        if cached is None or cached.pages is None or end > file.row_start + file.row_ends[last - 1]:
            return None
        if field.id not in cached.columns:
            rows = FragmentRows(want.fragment, np.arange(group_start, file.row_start + file.row_ends[last - 1]))
            pages = Pages()
            pages.add_all(file, cached.pages)
            cached.columns[field.id] = gather_dense(field, [rows], pages)
        values = cached.columns[field.id]
        return None if values is None else values[start - group_start : end - group_start]


class _Group:
    def __init__(self) -> None:
        self.pages: PageRuns | None = None
        self.columns: dict[int, npt.NDArray[Any] | None] = {}
        """Fixed-width columns by field id, built on first use; None if pages must be parsed."""
        self.lock = Lock()


def _pages_per_group(file: DataFile) -> int:
    offsets = file.offsets
    return max(1, _GROUP_BYTES * (len(offsets) - 1) // max(1, offsets[-1] - offsets[0]))
