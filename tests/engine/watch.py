"""Resources of a loader: threads, processes, open files, memory."""

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SOON_S = 60.0


def our_threads() -> list[str]:
    """Names of the live threads that loaders started."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-"))


def soon(happens: Callable[[], bool]) -> bool:
    """Whether a condition becomes true before a timeout."""
    deadline = time.monotonic() + SOON_S
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def threads_end() -> bool:
    gc.collect()
    return soon(lambda: not our_threads())


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def worker_processes() -> list[int]:
    """The worker processes of this process, zombies aside: the reader, the template of builders, and builders."""
    parents = ["self", *map(str, _seen)]  # a builder whose template was killed is nobody's child
    while parents:
        with suppress(OSError):  # a thread or a process that ends meanwhile
            for task in Path(f"/proc/{parents.pop()}/task").iterdir():
                for pid in (task / "children").read_text().split():
                    if int(pid) not in _seen and _is_worker(int(pid)):
                        _seen.append(int(pid))
                        parents.append(pid)
    _seen[:] = [pid for pid in _seen if _is_worker(pid)]
    return _seen[:]


def reader_processes() -> list[int]:
    """Those of them that read."""
    return [pid for pid in worker_processes() if _is_worker(pid, b"_reader_main")]


_seen: list[int] = []


def _is_worker(pid: int, kind: bytes = b"penstock.engine.workers") -> bool:
    with suppress(OSError):
        return kind in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def processes_of_session(session: int) -> set[int]:
    """Processes, zombies aside, of the session that a process has started."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.add(int(entry.name))
    return found
