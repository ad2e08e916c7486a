"""A TCP proxy that counts requests and bytes, and records the path of each request."""

import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_REQUEST = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")


class CountingProxy:
    """Forwards connections to a port of this machine. Requests are told from bodies by their first line."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        self.bytes = 0
        """Bytes of all responses."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def reset(self) -> None:
        with self._lock:
            self.requests, self.bytes = [], 0

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with suppress(OSError):
                    server = socket.create_connection(("127.0.0.1", self._upstream_port))
                    threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                    threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()
                    continue
                client.close()

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if not is_request:
                        self.bytes += len(data)
                    elif found := _REQUEST.match(data):
                        self.requests.append(f"{found[1].decode()} {found[2].decode()}")
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
