"""A TCP proxy that counts requests and bytes, and records the path of each request."""

import re
import select
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
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def reset(self) -> None:
        with self._lock:
            self.requests, self.bytes = [], 0

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._upstream_port)) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    self._count(data, is_request=source is client)
                    (server if source is client else client).sendall(data)

    def _count(self, data: bytes, *, is_request: bool) -> None:
        with self._lock:
            if not is_request:
                self.bytes += len(data)
            elif found := _REQUEST.match(data):
                self.requests.append(f"{found[1].decode()} {found[2].decode()}")
