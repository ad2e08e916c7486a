"""Processes that are started by exec, and fork servers: such a process imports once what all its forks need.

The contract; if the code disagrees with this list, the code is wrong:

- A fork server forks only while it has one thread. If what it imported has started others, it can only become the
  worker itself, so that each worker needs one.
- It waits for the end of a fork when it is told to, so that the pid is not used before.
"""

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from penstock.runners._channel import Channel, Kinds, shared
from penstock.runners._errors import RemoteError, portable
from penstock.runners._serving import serve
from penstock.runners._start import PythonProcess

_KILL_S = 1.0


class _Request(NamedTuple):
    """To a fork server. The answer is the pid of the worker, None if it has threads; or the exit code of a fork."""

    action: Literal["fork", "become", "reap"]
    pid: int = 0


class WorkerProcess(PythonProcess):
    """A running process at the other end of a channel."""

    def __init__(self, module: str, spec: bytes, kinds: Kinds, environment: Mapping[str, str]) -> None:
        """`main` of the module gets descriptors of the channel and of what `load_spec` loads."""
        self.channel, theirs = Channel.pair(kinds)
        memory = shared(spec)
        with theirs:
            super().__init__(module, theirs.fileno(), memory.fd, environment=environment)

    def reap(self) -> int | None:
        """Close the channel, and wait until the process has ended; returns its exit code."""
        self.channel.close()
        try:
            return self.wait(_KILL_S)
        except subprocess.TimeoutExpired:  # it closed its channel but did not exit
            self.kill()
            return self.wait()

    def abandon(self) -> None:
        """Close the channel in a forked process, which is not the parent of the worker."""
        self.channel.close()
        self.returncode = 0


class ForkServer(WorkerProcess):
    """A process that forks workers, or becomes one; see `serve_forks`."""

    def fork(self, descriptors: Sequence[int]) -> "ForkedProcess":
        """A worker that gets some descriptors; raises `ChildProcessError` if this has died or has threads."""
        channel, theirs = Channel.pair(self.channel.kinds)
        try:
            with theirs:
                pid = self.ask(_Request("fork"), [theirs.fileno(), *descriptors])
            if pid is None:
                raise ChildProcessError
        except BaseException:
            channel.close()
            raise
        return ForkedProcess(self, channel, pid)

    def become(self, descriptors: Sequence[int]) -> None:
        """Let this process be the worker; raises `ChildProcessError` if it has died."""
        if self.ask(_Request("become"), descriptors) is None:
            raise ChildProcessError

    def ask(self, request: _Request, descriptors: Sequence[int] = ()) -> int | None:
        """Send a request, and wait for the answer; None if it has died. Raises the error of one that did not start."""
        try:
            self.channel.send(request, descriptors)
            answer = self.channel.receive()[0]
        except (EOFError, OSError):
            return None
        if isinstance(answer, RemoteError):
            raise answer.revive()
        return answer  # type: ignore[no-any-return]


class ForkedProcess:
    """A running process that was forked from a fork server."""

    def __init__(self, server: ForkServer, channel: Channel, pid: int) -> None:
        self.channel, self.pid, self._server, self._reaped = channel, pid, server, False

    def kill(self) -> None:
        """Kill it, without waiting."""
        if not self._reaped:  # else another process may have its number
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Close the channel, and wait until the process has ended; returns its exit code, None if it is not known."""
        self.channel.close()
        if self._reaped:
            return None
        self.kill()  # it may have closed its channel and not exited
        self._reaped = True
        return self._server.ask(_Request("reap", self.pid))

    def abandon(self) -> None:
        """Close the channel in a forked process, which is not the parent of the fork server."""
        self.channel.close()


Work = Callable[[Channel, Sequence[int]], NoReturn]
"""What a worker does, given its channel and the descriptors that it gets."""


def serve_forks(channel: Channel, load: Callable[[], Work]) -> NoReturn:
    """Fork workers until the channel is closed; what they do is loaded before."""
    serve(channel, lambda: partial(_serve_forks, channel, load()), portable, threads=False)


def _serve_forks(channel: Channel, work: Work) -> None:
    while True:
        request, descriptors = channel.receive()
        if request.action == "reap":
            _, status = os.waitpid(request.pid, 0)
            channel.send(os.waitstatus_to_exitcode(status))
        elif request.action == "become":
            channel.send(os.getpid())
            work(channel, descriptors)
        else:
            channel.send(_fork(channel, work, *descriptors))
            for descriptor in descriptors:
                os.close(descriptor)


def _fork(channel: Channel, work: Work, fork_fd: int, *descriptors: int) -> int | None:
    if _num_threads() > 1:
        return None
    gc.freeze()  # or a collection would copy the memory that processes share
    pid = os.fork()
    if not pid:
        channel.close()
        work(Channel(fork_fd, channel.kinds), descriptors)
    return pid


def _num_threads() -> int:
    """Threads of this process, without one of jemalloc, which starts it again in a fork."""
    names = [Path(f"/proc/self/task/{thread}/comm").read_text() for thread in os.listdir("/proc/self/task")]
    return sum("jemalloc" not in name for name in names)
