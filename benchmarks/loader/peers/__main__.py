"""Write a workload with a peer, or measure one of its loaders, and answer with JSON.

`PEER write FOLDER WORKLOAD`, or `PEER read FOLDER WORKLOAD LOADER SECONDS WORKERS`.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.loader.measure import entropy_share, rate
from benchmarks.loader.workloads import Workload


def write(peer: ModuleType, folder: Path, workload: Workload) -> dict[str, float]:
    """How long it took; and of that how long the rows took to be made, which is no work of the peer's."""
    start = time.perf_counter()
    for _ in workload.chunks():
        pass
    made = time.perf_counter()
    peer.write(workload, folder)
    return {"write_s": time.perf_counter() - made, "make_s": made - start}


def read(
    peer: ModuleType, folder: Path, workload: Workload, name: str, seconds: str, workers: str
) -> dict[str, float | None]:
    loader = peer.LOADERS[name](workload, folder, int(workers))
    found = rate(loader, workload, seconds=float(seconds))
    return asdict(found) | {"entropy_share": entropy_share(loader, workload)}


if __name__ == "__main__":
    name, action, folder, workload, *rest = sys.argv[1:]
    peer = importlib.import_module(f"benchmarks.loader.peers.{name}")
    actions: dict[str, Callable[..., dict[str, Any]]] = {"write": write, "read": read}
    answer = actions[action](peer, Path(folder), Workload(**json.loads(workload)), *rest)
    print(json.dumps(answer | {"package": peer.PACKAGE, "version": version(peer.PACKAGE)}), flush=True)
