"""Files that are read in parts again and again stay open for a while: opening costs as much as reading a page.

There is no lock: threads that read would wait for it, and one that was held while the process forked would never be
free in the copy. So two threads may both open a file; one of the two is closed again.
"""

import os
import resource
from collections import OrderedDict
from collections.abc import Callable

_MOST, _SHARE = 4096, 2
"""Files at once, and the part of what the system allows a process that is taken for them."""


class OpenFile:
    """A file and its size; closed when nobody holds it."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, status: os.stat_result) -> None:
        self.fd, self.size = fd, status.st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class OpenFiles:
    """The files used last."""

    def __init__(self, opening: Callable[[str], tuple[int, os.stat_result]]) -> None:
        self._opening, self._most = opening, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE)
        self._files: OrderedDict[str, OpenFile] = OrderedDict()

    def __getitem__(self, key: str) -> OpenFile:
        """A file, to be held while it is read."""
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = OpenFile(*self._opening(key))
            if len(self._files) > self._most:
                self._files.popitem(last=False)
            return file
        try:  # without `suppress`, which costs more than the rest
            self._files.move_to_end(key)
        except KeyError:
            return file  # another thread has let go of it
        return file
