"""How many processes and threads a loader uses, given the number of workers."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from penstock.engine._options import Workers
from penstock.errors import InvalidInputError

_FEW_WORKERS = 3
"""So many threads and fewer share a GIL without loss."""
_SMALL_TABLE_BYTES = 64 << 20
"""A table that is read before processes have started."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What builds the batches of a rank."""

    processes: int
    """Processes that build, besides one that reads; 0 for threads of this process."""
    threads: int
    """Threads of this process that build."""
    notes: tuple[str, ...] = ()


def choose_workers(
    workers: Workers,
    *,
    functions: bool,
    table_bytes: int,
    threads_because: str | None,
    send_error: Callable[[], Exception | None],
) -> WorkerCounts:
    """Decide what builds batches.

    `functions` says whether functions of the user are called, which hold the GIL; `threads_because` why only threads
    can be used, and `send_error` why another process cannot get what it needs. Raises `InvalidInputError` if processes
    are asked for and impossible.
    """
    count = workers.count
    fast = not functions and (count <= _FEW_WORKERS or table_bytes < _SMALL_TABLE_BYTES)
    if workers.type == "thread" or (workers.type == "auto" and fast) or count == 0:
        return WorkerCounts(0, max(1, count))
    if threads_because is not None:
        notes = () if workers.type == "auto" else (f"threads are used: {threads_because}",)
    elif (error := send_error()) is not None:
        if workers.type == "process":
            raise InvalidInputError(
                'penstock.Workers(…, "process") needs transforms and decoders that can be sent to another process, and '
                f"these cannot ({type(error).__name__}: {error}); or use threads"
            ) from error
        notes = (f"threads are used, because transforms and decoders cannot be sent to other processes: {error}",)
    elif (denied := _descriptor_error()) is not None:
        notes = (f"threads are used, because this system does not let processes share memory: {denied}",)
    else:
        return WorkerCounts(count, 1)
    return WorkerCounts(0, count, notes)


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
