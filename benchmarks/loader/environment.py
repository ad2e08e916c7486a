"""Environments of peers: made once, each beside the pinned lists that it is made from."""

import os
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
"""Of the peers of the loader: peers.txt and peers-no-deps.txt."""


@cache
def peers_python(folder: Path = FOLDER) -> str:
    """The interpreter that has the peers listed in a folder; `BENCH_PEERS_PYTHON` names one that is ready for all."""
    if given := os.environ.get("BENCH_PEERS_PYTHON"):
        return given
    home, requirements, without_dependencies = folder / ".venv", folder / "peers.txt", folder / "peers-no-deps.txt"
    python, installed = home / "bin" / "python", home / requirements.name
    wanted = requirements.read_text() + (without_dependencies.read_text() if without_dependencies.exists() else "")
    if not installed.exists() or installed.read_text() != wanted:
        print(f"installing the peers in {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "-r", str(requirements)], check=True)
        if without_dependencies.exists():
            subprocess.run([*pip, "--no-deps", "-r", str(without_dependencies)], check=True)
        installed.write_text(wanted)
    return str(python)
