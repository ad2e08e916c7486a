"""A peer in a process of its own that stays, so that turns with it pay for no start: a line of JSON each way."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import ROOT

_SHOWN_BYTES = 4000


class Peer:
    """Calls functions of a module in another interpreter."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Any) -> None:
        self._process, self._errors = process, errors

    def ask(self, function: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a function; raises `RuntimeError` with what the process said if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([function, arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _SHOWN_BYTES))
            raise RuntimeError(f"the peer ended in {function}:\n{self._errors.read().decode(errors='replace')}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def peer(module: str) -> Iterator[Peer]:
    """A module of this folder, run by the interpreter that has the peers."""
    command = [peers_python(Path(__file__).parent), "-m", f"benchmarks.query.{module}"]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True) as process,
    ):
        try:
            yield Peer(process, errors)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def serve(*functions: Callable[..., dict[str, Any]]) -> None:
    """Answer calls of these functions until there are no more; what they print goes to the error output."""
    known = {function.__name__: function for function in functions}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        function, arguments = json.loads(line)
        print(json.dumps(known[function](**arguments)), file=answers, flush=True)
