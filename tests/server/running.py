"""A server in a process of its own, and requests to it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LIMIT_S = 240
_KEY_FILE = re.compile(r"admin is in (\S+),")
_URL = re.compile(r"Serving on (\S+);")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningServer:
    """`penstock serve` on a free port; its output is in files, because a full pipe would stop it."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    admin_key: str = ""
    url: str = ""

    def start(self, *, wait: bool = True) -> "RunningServer":
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", str(self.port), *self.arguments]
        environment = {**os.environ, "PENSTOCK_HOME": str(self.folder / "home"), **self.environment}
        self.starts += 1
        with self.out.open("wb") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=environment, cwd=self.folder)
        if wait:
            self.wait_until_ready()
        return self

    @property
    def out(self) -> Path:
        return self.folder / f"out-{self.starts}.txt"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := _URL.search(self.out.read_text()):
                self.url = found[1]
                self.port = urlsplit(self.url).port or 0
                if found := _KEY_FILE.search(self.out.read_text()):
                    self.admin_key = Path(found[1]).read_text().strip()
                try:
                    if self.request("GET", "/health").status == 200:
                        return
                except OSError:
                    pass
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own; `key` defaults to that of the server's admin where one is needed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            sent = {"content-type": "application/json"} if body is not None else {}
            if key:
                sent["authorization"] = f"Bearer {key}"
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """A request by the server's admin that must succeed."""
        reply = self.request("POST", path, {} if body is None else body, key=key or self.admin_key)
        assert reply.status == 200, reply.body
        return reply.document

    def get(self, path: str, *, key: str | None = None) -> Any:
        reply = self.request("GET", path, key=key or self.admin_key)
        assert reply.status == 200, reply.body
        return reply.document

    def new_key(self, workspace: str, member: str, role: str, **options: Any) -> str:
        """The key of a new member."""
        self.post(f"/v1/namespace/{workspace}/member/{member}/set", {"role": role})
        key: str = self.post(f"/v1/namespace/{workspace}/key/create", {"member": member, **options})["key"]
        return key

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def log_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def running(folder: Path, *arguments: str, start: bool = True, **environment: str) -> Iterator[RunningServer]:
    server = RunningServer(arguments, folder, environment)
    try:
        yield server.start() if start else server
    finally:
        if server.process is not None:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait(LIMIT_S)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
