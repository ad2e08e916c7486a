"""Local files: a pool of open descriptors, memory maps, and the test whether a folder is on a local file system.

Opening a file costs as much as reading a page. The pool has no lock: readers would contend for it, and one held during
a fork would stay locked in the child. So two threads may both open a file; one of the two is closed again.
"""

import ctypes
import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from weakref import finalize

_MAX_FILES, _LIMIT_SHARE = 4096, 4
"""Files that stay open, and the divisor that gives their share of the process's descriptor limit."""
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
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


class OpenFiles:
    """The open files of one store; all stores of a process share one limit."""

    def __init__(self) -> None:
        self._files: dict[str, OpenFile] = {}
        finalize(self, _close_all, self._files)

    def get(self, key: str, open_file: Callable[[str], tuple[int, os.stat_result]]) -> OpenFile:
        """An open file, opened if necessary; hold the reference while reading from it."""
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = OpenFile(*open_file(key))
            _recent[file] = self._files, key
            if len(_recent) > _max_files():
                close_oldest_file()
            return file
        try:  # without `suppress`, which costs more than the rest
            _recent.move_to_end(file)
        except KeyError:
            return file  # evicted by another thread
        return file

    def close(self) -> None:
        """Close all files that no thread reads from; they are opened again when they are needed."""
        _close_all(self._files)


_recent: OrderedDict[OpenFile, tuple[dict[str, OpenFile], str]] = OrderedDict()
"""The open files of all stores, the least recently used first."""


def close_oldest_file() -> bool:
    """Close the file that was not used for the longest time; False if none is open."""
    try:
        _, (files, key) = _recent.popitem(last=False)
    except KeyError:
        return False
    files.pop(key, None)
    return True


def _close_all(files: dict[str, OpenFile]) -> None:
    while files:
        try:
            _, file = files.popitem()
        except KeyError:  # another thread closed the last one
            return
        _recent.pop(file, None)


def _max_files() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_FILES if limit == resource.RLIM_INFINITY else min(_MAX_FILES, limit // _LIMIT_SHARE)


def map_file(fd: int, start: int, end: int) -> memoryview:
    """Map bytes of a file until the last view of them is gone; `mmap.mmap` would hold a descriptor for as long.

    The file must not be shorter: an access after its end would kill the process.
    """
    base = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    address = _libc.mmap(None, end - base, mmap.PROT_READ, mmap.MAP_SHARED, fd, base)
    if address == _MAP_FAILED:
        raise OSError(error := ctypes.get_errno(), os.strerror(error))
    memory = (ctypes.c_ubyte * (end - base)).from_address(address)
    finalize(memory, _libc.munmap, address, end - base).atexit = False
    return memoryview(memory).cast("B")[start - base :].toreadonly()


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
