"""`penstock doctor`."""

import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.text import Text

import penstock
from penstock.cli._credentials import credentials
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.errors import NotFoundError, PenstockError
from penstock.storage import FolderStore, Store, open_store, probe

_PACKAGES = ("penstock", "pyarrow", "obstore", "numpy")
_ROUNDS = 5
_BODY = bytes(4096)


def doctor(run: Run, uri: Uri) -> Answer:
    """Try what a store can do, and remove what that wrote; needs no table."""
    store = open_store(uri, options=run.options)
    checks = {"credentials": (True, credentials(uri, run.options)), "table": _table(uri, run)}
    with _left_as_it_was(store):
        checks |= _capabilities(store, run)
        if checks["create_only"][0] is not None:
            checks["latency"] = _attempt(lambda: (True, _latency(store)))
    versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    ok = all(good for good, _ in checks.values())
    document = {
        "uri": store.uri,
        "ok": ok,
        "checks": {name: {"ok": bool(good), "detail": run.hide(detail)} for name, (good, detail) in checks.items()},
        "versions": versions,
    }
    lines = [Text.assemble(("ok  " if good else "BAD ", "green" if good else "bold red"), f"{name.replace('_', ' ')}: ",
                           printable(run.hide(detail))) for name, (good, detail) in checks.items()]  # fmt: skip
    return Answer(document, [Text(store.uri, "bold"), *lines, ", ".join(f"{k} {v}" for k, v in versions.items())], ok)
