"""The peers' environment: made once, beside this file, from the pinned list in peers.txt."""

import os
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent / ".venv"
REQUIREMENTS = Path(__file__).parent / "peers.txt"


@cache
def peers_python() -> str:
    """The interpreter that has the peers; `BENCH_PEERS_PYTHON` names one that is ready."""
    if given := os.environ.get("BENCH_PEERS_PYTHON"):
        return given
    python = HOME / "bin" / "python"
    installed = HOME / REQUIREMENTS.name
    if not installed.exists() or installed.read_text() != REQUIREMENTS.read_text():
        print(f"installing the peers in {HOME}", file=sys.stderr)
        venv.create(HOME, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "-r", str(REQUIREMENTS)], check=True)
        installed.write_text(REQUIREMENTS.read_text())
    return str(python)
