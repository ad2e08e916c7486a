"""Measurements in processes of their own, which answer with a line of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 3600
_OUTPUT_LINES = 30


def call(module: str, *words: str, python: str = sys.executable) -> dict[str, Any]:
    """Run a module of the benchmarks and return its answer; what it says besides is shown only if it fails."""
    command = [python, "-m", f"benchmarks.loader.{module}", *words]
    # Some peers hand out arrays that cannot be written, and torch warns of it once in every process.
    environment = dict(os.environ) | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-_OUTPUT_LINES:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{output}")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def ask(module: str, function: str, **arguments: Any) -> dict[str, Any]:
    """Call a function of a module that answers."""
    return call(module, function, json.dumps(arguments))


def answer(*functions: Callable[..., dict[str, Any]]) -> None:
    """Call one of these functions as the command line says."""
    chosen = {function.__name__: function for function in functions}[sys.argv[1]]
    print(json.dumps(chosen(**json.loads(sys.argv[2]))), flush=True)
