"""Start a Python process by exec, so that it inherits neither threads nor locks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(*map(int, sys.argv[2:]))
"""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def start_python(
    module: str, *arguments: int, descriptors: Sequence[int], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that calls `main` of a module with integers, such as descriptors that it inherits.

    It imports from where this process does, and starts with SIGINT blocked, so that Ctrl-C does not reach it before
    `main` has decided. `environment` has defaults: variables that are set keep their values.
    """
    command = [
        sys.executable, *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
        "-c", _PROGRAM.format(module=module), json.dumps(sys.path), *map(str, arguments),
    ]  # fmt: skip
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**_ONE_THREAD, **(environment or {}), **os.environ},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ConnectedProcess:
    """A process that calls `main` of a module with the descriptor of the other end of a connection."""

    def __init__(self, module: str) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = start_python(module, theirs.fileno(), descriptors=[theirs.fileno()])

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """End it, whatever it does; may be called by any thread."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
