"""A group of real processes, joined by torch.distributed or jax.distributed, that run functions of test modules."""

import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any

_COLLECTIVE_S = 300
_CALL_S = 240  # less than the collectives, so that the test reports which rank hangs


def join_torch(rank: int, count: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=_COLLECTIVE_S),
    )


def join_jax(rank: int, count: int, folder: Path) -> None:
    """Two devices for each rank."""
    import jax

    port = folder / "port"
    if rank == 0:
        with socket() as free:
            free.bind(("localhost", 0))
            (folder / "new").write_text(str(free.getsockname()[1]))
        (folder / "new").rename(port)
    while not port.exists():
        time.sleep(0.01)
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port.read_text()}", count, rank, initialization_timeout=_COLLECTIVE_S)


class Ranks:
    """A process group; the first call starts it, and a failed call stops it."""

    def __init__(self, count: int, join: Callable[[int, int, Path], None] = join_torch) -> None:
        self.count, self._join = count, join
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call the function on every rank; returns the results by rank. AssertionError if a rank fails or hangs."""
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
        folder = Path(tempfile.mkdtemp(prefix="penstock-ranks-"))
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            join = partial(self._join, rank, self.count, folder)
            process = context.Process(target=_serve, args=(join, theirs), daemon=False)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _serve(join: Callable[[], None], pipe: Connection) -> None:
    join()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, function(*args)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))
