"""What this process may use of its machine."""

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath


def available_cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory of this machine, or of the control group (cgroup v1 or v2) of this process if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> list[int]:
    limits: list[int] = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
            inside = PurePosixPath(group.lstrip("/"))
            for folder in (inside, *inside.parents):  # the limit of a parent holds too; a container sees only its own
                with suppress(OSError, ValueError):  # "max" is no limit
                    limits.append(int((root / "sys/fs/cgroup" / mount / folder / name).read_text()))
    return limits
