"""The peers' environment: made once, beside this file, from the pinned lists in peers.txt and peers-no-deps.txt."""

import os
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent / ".venv"
REQUIREMENTS = Path(__file__).parent / "peers.txt"
WITHOUT_DEPENDENCIES = Path(__file__).parent / "peers-no-deps.txt"


@cache
def peers_python() -> str:
    """The interpreter that has the peers; `BENCH_PEERS_PYTHON` names one that is ready."""
    if given := os.environ.get("BENCH_PEERS_PYTHON"):
        return given
    python = HOME / "bin" / "python"
    installed = HOME / REQUIREMENTS.name
    wanted = REQUIREMENTS.read_text() + WITHOUT_DEPENDENCIES.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        print(f"installing the peers in {HOME}", file=sys.stderr)
        venv.create(HOME, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
        subprocess.run([*pip, "--no-deps", "-r", str(WITHOUT_DEPENDENCIES)], check=True)
        installed.write_text(wanted)
    return str(python)
