"""The memory of a process and all its descendants, as the sum of proportional set sizes."""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_INTERVAL_S = 0.1
_PSS = re.compile(rb"^Pss:\s*(\d+) kB", re.MULTILINE)


@dataclass
class Peak:
    """The largest sum, and how many processes there were then."""

    bytes: int = 0
    processes: int = 0


@contextmanager
def sampled() -> Iterator[Peak]:
    """Sample this process and its descendants until the end of the block."""
    peak, stop = Peak(), threading.Event()

    def sample() -> None:
        while not stop.wait(_INTERVAL_S):
            sizes = [size for process in tree(os.getpid()) if (size := pss_bytes(process))]
            if sum(sizes) > peak.bytes:
                peak.bytes, peak.processes = sum(sizes), len(sizes)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    time.sleep(2 * _INTERVAL_S)
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def pss_bytes(process: int) -> int:
    """Proportional set size of a process; 0 if it has ended."""
    for name in ("smaps_rollup", "smaps"):
        with suppress(OSError):
            return sum(map(int, _PSS.findall(Path(f"/proc/{process}/{name}").read_bytes()))) << 10
    return 0


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                status = Path(f"/proc/{entry}/stat").read_text()
                parent = int(status.rpartition(")")[2].split()[1])  # the name before it may hold spaces
                children.setdefault(parent, []).append(int(entry))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found
