"""How many processes and threads a loader uses, given the number of workers."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from penstock.engine._options import Workers
from penstock.errors import InvalidInputError
from penstock.plan import RankPartitioner

_FEW_WORKERS = 3
"""So many threads and fewer share a GIL without loss."""
_THREADS_PER_PROCESS = 2
"""Where no function of the user holds the GIL: while one reads or plans, the other decodes or gathers."""
_LITTLE_BYTES = 64 << 20
"""A table that is read before processes have started."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What builds the batches of a rank."""

    processes: int
    """Worker processes; 0 for threads of this process."""
    lane_owners: int
    """Processes that own lanes; the others only run functions."""
    threads: int
    """Threads that build, in each process."""
    notes: tuple[str, ...] = ()


def choose_workers(
    workers: Workers,
    partitioner: RankPartitioner,
    *,
    functions: bool,
    table_bytes: int,
    threads_because: str | None,
    send_error: Callable[[], Exception | None],
) -> WorkerCounts:
    """Decide what builds batches.

    Processes own equally many lanes, so that their rows are evenly spaced in a batch. `functions` says whether
    functions of the user are called, `threads_because` why only threads can be used, and `send_error` why another
    process cannot get what it needs. Raises `InvalidInputError` if processes are asked for and impossible.
    """
    count = workers.count
    threads = WorkerCounts(0, 0, max(1, count))
    little = count <= _FEW_WORKERS or (table_bytes < _LITTLE_BYTES and not functions)
    if workers.type == "thread" or (workers.type == "auto" and little) or count == 0:
        return threads
    if threads_because is not None:
        return WorkerCounts(0, 0, count, () if workers.type == "auto" else (f"threads are used: {threads_because}",))
    error = send_error()
    if error is not None:
        if workers.type == "process":
            raise InvalidInputError(
                'penstock.Workers(…, "process") needs transforms and decoders that can be sent to another process, and '
                f"these cannot ({type(error).__name__}: {error}); or use threads"
            ) from error
        note = f"threads are used, because transforms and decoders cannot be sent to other processes: {error}"
        return WorkerCounts(0, 0, count, (note,))
    denied = _descriptor_error()
    if denied is not None:
        note = f"threads are used, because this system does not let processes share memory: {denied}"
        return WorkerCounts(0, 0, count, (note,))
    processes = count if functions else -(-count // _THREADS_PER_PROCESS)
    owners = max(n for n in range(1, processes + 1) if partitioner.lanes_per_rank % n == 0)
    if partitioner.lanes_per_rank == 1:  # without lanes, each process builds whole spans
        owners = processes
    if not functions:
        processes = owners
    return WorkerCounts(processes, owners, 1 if functions else max(1, count // processes))


@cache
def _descriptor_error() -> str | None:
    """Why descriptors of shared memory cannot be passed between processes; None if they can."""
    try:
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        try:
            left, right = socket.socketpair()
            with left, right:
                socket.send_fds(left, [b"1"], [fd])
                for received in socket.recv_fds(right, 1, 1)[1]:
                    os.close(received)
        finally:
            os.close(fd)
    except (AttributeError, OSError) as error:
        return str(error)
    return None
