"""Start a Python process by exec, so that it inherits neither threads nor locks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(*map(int, sys.argv[2:]))
"""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def start_connected(module: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls `main` of a module with the descriptor of the other end of a connection."""
    ours, theirs = Pipe()
    with theirs:
        return start_python(module, theirs.fileno(), descriptors=[theirs.fileno()]), ours


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
