"""A running `penstock serve`, what it costs, and requests to it."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    """A server, and the key of its admin."""

    port: int
    key: str
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> tuple[float, float]:
        """Processor time of the server and its worker processes: in their own code, and in the kernel for them."""
        found = [_cpu_s(pid) for pid in (self.pid, *_children(self.pid))]
        return sum(own for own, _ in found), sum(kernel for _, kernel in found)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any]:
        """Send one request on a connection of its own; returns the status and the document."""
        connection = self.connect()
        try:
            return ask(connection, method, path, body, key=key or self.key)
        finally:
            connection.close()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, *, key: str
) -> tuple[int, Any]:
    """Send one request; returns the status and the document."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read() or b"null")


@contextmanager
def served(database: str, storage: str, *options: str) -> Iterator[Running]:
    """Start a server on a new database, and stop it at the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        command = [sys.executable, "-m", "penstock.cli", "serve", "--database", database, "--storage", storage,
                   "--port", str(port), *options]  # fmt: skip
        environment = os.environ | {"PENSTOCK_HOME": folder, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield Running(port, _wait(port, process, Path(folder, "log")), process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
            continue
        found = re.search(r"\bpen_\w+", log.read_text())
        if found:
            return found.group()
    raise RuntimeError(f"the server did not start; its log:\n{log.read_text()}")


def _children(pid: int) -> Sequence[int]:
    found = [int(word) for task in Path(f"/proc/{pid}/task").iterdir()
             for word in (task / "children").read_text().split()]  # fmt: skip
    return [*found, *(child for parent in found for child in _children(parent))]


def _cpu_s(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS_S, int(fields[12]) / _TICKS_S
