"""Files that are read in parts again and again stay open for a while: opening costs as much as reading a page."""

import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from weakref import WeakSet

_MOST, _SHARE = 4096, 2
"""Files at once, and the part of what the system allows a process that is taken for them."""


class OpenFile:
    """A file and its size; closed when it has been dropped and nobody uses it."""

    __slots__ = ("_dropped", "fd", "size", "users")

    def __init__(self, fd: int, status: os.stat_result) -> None:
        self.fd, self.size = fd, status.st_size
        self.users = 0
        self._dropped = False

    def drop(self) -> None:
        self._dropped = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        if self._dropped and not self.users:
            os.close(self.fd)


class OpenFiles:
    """The files used last; `take` one, and `give_back` it."""

    def __init__(self, opening: Callable[[str], tuple[int, os.stat_result]]) -> None:
        self._opening, self._most = opening, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE)
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self.unlock()
        _all.add(self)

    def unlock(self) -> None:
        """Forget who is at it: in a copy of the process that another thread made, nobody is."""
        self._lock = Lock()

    def take(self, key: str) -> OpenFile:
        with self._lock:
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = OpenFile(*self._opening(key))
                if len(self._files) > self._most:
                    self._files.popitem(last=False)[1].drop()
            else:
                self._files.move_to_end(key)
            file.users += 1
            return file

    def give_back(self, file: OpenFile) -> None:
        with self._lock:
            file.users -= 1
            file.close_if_idle()

    def __del__(self) -> None:
        for file in self._files.values():
            file.drop()


_all: "WeakSet[OpenFiles]" = WeakSet()


def _unlock_all() -> None:
    """In the child of a fork: a lock that was held elsewhere would never be free."""
    for files in list(_all):
        files.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
