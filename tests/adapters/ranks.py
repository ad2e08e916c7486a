"""Real processes in a real torch.distributed group, which run functions of test modules side by side."""

import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_COLLECTIVE_S = 30
_CALL_S = 60


class Ranks:
    """A group that is started when first needed, and anew after anything went wrong in it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returns on each rank; it is called with these arguments, in a group of all ranks."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        deadline = time.monotonic() + _CALL_S
        found = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                self.stop()
                raise AssertionError(f"rank {rank} hangs in {function.__name__}")
            failed, value = pipe.recv()
            if failed:
                self.stop()
                raise AssertionError(f"rank {rank}: {value}")
            found.append(value)
        return found

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = get_context("spawn")
        meeting = Path(tempfile.mkdtemp(prefix="penstock-ranks-")) / "group"
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.count, str(meeting), theirs), daemon=False)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _serve(rank: int, count: int, meeting: str, pipe: Connection) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=_COLLECTIVE_S)
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, function(*args)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))
