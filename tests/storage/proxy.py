"""A TCP proxy that injects faults by script."""

import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

Action = Literal["pass", "reset", "503", "403", "hang", "swallow"]


class FaultProxy:
    """Applies the next action of its script to each new connection; the last action repeats.

    `reset` resets the connection after 20,000 response bytes; `swallow` forwards the request and drops the response.
    """

    def __init__(self, upstream_port: int, script: Sequence[Action]) -> None:
        self._upstream_port = upstream_port
        self._script = list(script)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping = threading.Event()
        self._dead = threading.Event()
        self._threads: list[threading.Thread] = []
        self.actions: list[Action] = []
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._listener.settimeout(0.02)
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def die(self, how: Literal["refuse", "hang"]) -> None:
        """Stop for good: refuse connections and close those that are open, or accept them and never answer."""
        self._script = ["hang"]
        self._dead.set()
        if how == "refuse":
            self._stopping.set()
            for thread in self._threads:
                thread.join()
            self._listener.close()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            action = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            self.actions.append(action)
            self._spawn(self._serve, client, action)

    def _serve(self, client: socket.socket, action: Action) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream_port)) as server:
            if action in ("503", "403"):
                client.recv(65536)
                client.sendall(f"HTTP/1.1 {action} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                return
            with suppress(ConnectionError):
                self._pump(client, server, action)

    def _pump(self, client: socket.socket, server: socket.socket, action: Action) -> None:
        sent_bytes = 0
        while not self._stopping.is_set():
            for source in select.select([client, server], [], [], 0.02)[0]:
                data = source.recv(1 << 18)
                if not data or (source is server and action == "swallow"):
                    return
                if source is client:
                    if action != "hang" and not self._dead.is_set():
                        server.sendall(data)
                    continue
                if action == "reset" and sent_bytes + len(data) > 20_000:
                    client.sendall(data[: 20_000 - sent_bytes])
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                client.sendall(data)
                sent_bytes += len(data)
