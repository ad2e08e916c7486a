"""A TCP proxy that delays each HTTP request, and can stand for a link of limited speed.

It runs as a process of its own, prints the port on which it listens, and lives until its input is closed. Two threads
serve a connection: one reads requests and holds each back on its own, one moves answers by `splice`, so that their
bytes never enter Python.
"""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl

_PIPE_BYTES = 1 << 20
_HEADER_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Delays:
    """What is done to requests on their way."""

    delay_ms: float = 0.0
    every_nth: int = 0
    """One request in so many waits `extra_s` longer; 0 for none."""
    extra_s: float = 0.0
    link_mib_s: float = 0.0
    """All answers together come no faster than this; 0 for as fast as they can."""


class Link:
    """Lets bytes pass at a given rate, whichever thread they come from."""

    def __init__(self, mib_s: float) -> None:
        self._bytes_s = mib_s * (1 << 20)
        self._lock = threading.Lock()
        self._free_s = 0.0

    def carry(self, count: int) -> None:
        """Wait until so many bytes have had their time on the link."""
        if not self._bytes_s:
            return
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + count / self._bytes_s
            done_s = self._free_s
        time.sleep(max(0.0, done_s - time.monotonic()))


@dataclass(frozen=True)
class Proxy:
    """Serves connections to one server."""

    upstream: tuple[str, int]
    delays: Delays
    link: Link
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def serve(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        server = socket.create_connection(self.upstream)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=self._move, args=(server, client), daemon=True)
        answers.start()
        with suppress(OSError):
            while request := _request(client):
                time.sleep(self._delay_s())
                server.sendall(request)
        _end(server)
        answers.join()
        client.close()
        server.close()

    def _delay_s(self) -> float:
        late = self.delays.every_nth and next(self.numbers) % self.delays.every_nth == 0
        return self.delays.delay_ms / 1000 + (self.delays.extra_s if late else 0.0)

    def _move(self, source: socket.socket, target: socket.socket) -> None:
        """Bytes from socket to socket through a pipe, until there are no more."""
        outlet, inlet = os.pipe()
        fcntl(inlet, F_SETPIPE_SZ, _PIPE_BYTES)
        with suppress(OSError):
            while count := os.splice(source.fileno(), inlet, _PIPE_BYTES):
                self.link.carry(count)
                while count:
                    count -= os.splice(outlet, target.fileno(), count)
        os.close(inlet)
        os.close(outlet)
        _end(source)
        _end(target)


def _request(client: socket.socket) -> bytes:
    """The next request with its body, or nothing where the client is gone; the client waits for each answer."""
    data, end = b"", None
    while end is None or len(data) < end:
        part = client.recv(1 << 16)
        if not part:
            return b""
        data += part
        if end is None and _HEADER_END in data:
            head = data.partition(_HEADER_END)[0]
            length = _LENGTH.search(head)
            end = len(head) + len(_HEADER_END) + (int(length[1]) if length else 0)
    return data


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(upstream_port: int, delays: Delays) -> Iterator[str]:
    """A proxy in a process of its own; the address to use instead of the server's."""
    command = [sys.executable, "-m", "benchmarks.loader.proxy", str(upstream_port), json.dumps(asdict(delays))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the proxy did not start; its words are above")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.communicate()


def main(upstream_port: str, delays: str) -> None:
    threading.stack_size(256 << 10)
    wanted = Delays(**json.loads(delays))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    made = Proxy(("127.0.0.1", int(upstream_port)), wanted, Link(wanted.link_mib_s))
    threading.Thread(target=made.serve, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
