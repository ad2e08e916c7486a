"""Start a Python process by exec, so that it inherits neither threads nor locks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Pipe
from types import MappingProxyType

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(*map(int, sys.argv[2:]))
"""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class PythonProcess(subprocess.Popen[bytes]):
    """A process that calls `main` of a module with descriptors that it inherits.

    It imports from where this process does, and starts with SIGINT blocked, so that Ctrl-C does not reach it before
    `main` has decided.
    """

    def __init__(self, module: str, *descriptors: int, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environment` has defaults: variables that are set keep their values."""
        command = [
            sys.executable, *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-c", _PROGRAM.format(module=module), json.dumps(sys.path), *map(str, descriptors),
        ]  # fmt: skip
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().__init__(
                command, stdin=subprocess.DEVNULL, pass_fds=descriptors,
                env={**_ONE_THREAD, **environment, **os.environ},
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ConnectedProcess(PythonProcess):
    """A process that has the other end of a connection."""

    def __init__(self, module: str) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            super().__init__(module, theirs.fileno())

    def end(self) -> None:
        """End it, whatever it does; may be called by any thread."""
        with suppress(OSError):
            self.kill()
        self.wait()
