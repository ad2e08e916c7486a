"""Local files: a cache of open descriptors, and the test whether a folder is on a local file system.

Opening a file costs as much as reading a page. The cache has no lock: readers would contend for it, and one held during
a fork would stay locked in the child. So two threads may both open a file; one of the two is closed again.
"""

import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

_MAX_FILES, _LIMIT_SHARE = 4096, 2
"""Cached files, and the divisor that gives their share of the process's descriptor limit."""
_LOCAL_FILESYSTEMS = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "overlay", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


class OpenFile:
    """A descriptor and the file's size; closed when the last reference is dropped."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, status: os.stat_result) -> None:
        self.fd, self.size = fd, status.st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class OpenFileCache:
    """An LRU cache of open files."""

    def __init__(self, open_file: Callable[[str], tuple[int, os.stat_result]]) -> None:
        self._open_file = open_file
        self._max_files = min(_MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _LIMIT_SHARE)
        self._files: OrderedDict[str, OpenFile] = OrderedDict()

    def __getitem__(self, key: str) -> OpenFile:
        """An open file; hold the reference while reading from it."""
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = OpenFile(*self._open_file(key))
            if len(self._files) > self._max_files:
                self._files.popitem(last=False)
            return file
        try:  # without `suppress`, which costs more than the rest
            self._files.move_to_end(key)
        except KeyError:
            return file  # evicted by another thread
        return file


def on_local_filesystem(folder: Path) -> bool:
    """Whether a folder is certainly on a local file system; False if that cannot be determined."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        device = os.stat(folder).st_dev
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    device_number = f"{os.major(device)}:{os.minor(device)}"
    types = {line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2] == device_number}
    return bool(types) and types <= _LOCAL_FILESYSTEMS
