"""Files that are read in parts again and again stay open for a while: opening costs as much as reading a page."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

_MOST = 64

Opened = tuple[int, os.stat_result]


class OpenFiles:
    """The files read last, each closed when it is no longer among them and nobody reads it."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _Shared] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def held(self, key: str, opening: Callable[[str], AbstractContextManager[Opened]]) -> Iterator[Opened]:
        """A file, opened if need be; it stays open at least while the block runs."""
        with self._lock:
            shared = self._files.pop(key, None)
            if shared is None:
                shared = _Shared()
                with opening(key) as (fd, status):
                    shared.opened = os.dup(fd), status
            self._files[key] = shared
            shared.users += 1
            if len(self._files) > _MOST:
                self._files.popitem(last=False)[1].drop()
        try:
            yield shared.opened
        finally:
            with self._lock:
                shared.users -= 1
                shared.close_if_idle()

    def __del__(self) -> None:
        for shared in self._files.values():
            shared.drop()


class _Shared:
    opened: Opened

    def __init__(self) -> None:
        self.users = 0
        self._dropped = False

    def drop(self) -> None:
        """Close the file as soon as nobody reads it."""
        self._dropped = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        if self._dropped and not self.users:
            os.close(self.opened[0])
