"""Measurements in processes of their own, which answer with a line of JSON."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 3600
_OUTPUT_LINES = 30


def call(
    module: str,
    *words: str,
    package: str = "benchmarks.loader",
    python: str = sys.executable,
    timeout_s: float = _TIMEOUT_S,
    source: Path | None = None,
) -> dict[str, Any]:
    """Run a module of the benchmarks and return its answer; what it says besides is shown only if it fails.

    `source` is a folder in which packages are found before all others.
    """
    command = [python, "-m", f"{package}.{module}", *words]
    # Some peers hand out arrays that cannot be written, and torch warns of it once in every process.
    environment = dict(os.environ) | {"PYTHONWARNINGS": "ignore"}
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    pipe = subprocess.PIPE
    job = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        output, errors = job.communicate(timeout=timeout_s)
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)  # its workers hold the pipes too
        job.communicate()
        raise
    answers = [line for line in output.splitlines() if line.startswith("{")]
    if job.returncode or not answers:
        shown = "\n".join((output + errors).splitlines()[-_OUTPUT_LINES:])
        raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}:\n{shown}")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def ask(module: str, function: str, **arguments: Any) -> dict[str, Any]:
    """Call a function of a module that answers."""
    return call(module, function, json.dumps(arguments))


def answer(*functions: Callable[..., dict[str, Any]]) -> None:
    """Call one of these functions as the command line says."""
    chosen = {function.__name__: function for function in functions}[sys.argv[1]]
    print(json.dumps(chosen(**json.loads(sys.argv[2]))), flush=True)
