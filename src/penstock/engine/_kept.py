"""Pages of light columns, read once and kept: labels of a million pictures are eight megabytes, in a few requests."""

from collections.abc import Iterator
from threading import Lock

from penstock.storage import Store
from penstock.table import PageRequest, read_pages

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
        file, offsets = request.file, request.file.offsets
        per_group = max(1, _GROUP_BYTES * (len(offsets) - 1) // max(1, offsets[-1] - offsets[0]))
        for number in sorted({page // per_group for page in request.pages}):
            first = number * per_group
            yield PageRequest(file, range(first, min(first + per_group, len(offsets) - 1)))

    def read(self, group: PageRequest) -> tuple[Runs, bool]:
        """The pages of a group, and whether they had to be fetched."""
        with self._lock:
            kept = self._groups.setdefault((group.file.id, group.pages[0]), _Group())
        with kept.lock:
            if kept.runs is not None:
                return kept.runs, False
            kept.runs = read_pages(self._store, group)
            return kept.runs, True


class _Group:
    def __init__(self) -> None:
        self.runs: Runs | None = None
        self.lock = Lock()
