"""Requests that come too slowly, or too many at once: the application in this process, and messages by hand."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message, Scope

from penstock.catalog.registry import Registry
from penstock.server import ServerConfig, _endpoint, create_app


@pytest.fixture
def app(tmp_path: Path) -> Starlette:
    database = str(tmp_path / "database")
    registry = Registry(database)
    try:
        registry.migrate()
    finally:
        registry.close()
    return create_app(ServerConfig(database=database, storage=str(tmp_path / "tables")))


class Client:
    """One request whose body arrives as the test sends it."""

    def __init__(self, app: Starlette, path: str, *, method: str = "POST") -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: list[Message] = []
        scope: Scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [], "client": ("192.0.2.7", 1), "server": ("127.0.0.1", 7117), "scheme": "http",
            "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        self.reading = asyncio.Event()
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    def send(self, body: bytes, *, more: bool) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        await self._task
        start, *rest = self._sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, json.loads(b"".join(message["body"] for message in rest))

    async def _receive(self) -> Message:
        self.reading.set()
        return await self._inbox.get()

    async def _send(self, message: Message) -> None:
        self._sent.append(dict(message))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with app.router.lifespan_context(app):
        yield


@pytest.mark.parametrize("parts", [(), (b'{"version"',)])
def test_a_body_that_does_not_arrive_is_not_waited_for(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, parts: Sequence[bytes]
) -> None:
    monkeypatch.setattr(_endpoint, "_BODY_TIMEOUT_S", 0.2)

    async def run() -> tuple[int, dict[str, str], Any]:
        async with lifespan(app):
            client = Client(app, "/v1/table/tides/describe")
            for part in parts:
                client.send(part, more=True)
            return await client.reply()

    status, headers, document = asyncio.run(run())
    assert (status, document["code"]) == (408, 13)
    assert headers["connection"] == "close"  # the rest of the body would be read as the next request
    assert document["instance"] == headers["x-request-id"]


def test_requests_beyond_the_limit_are_refused_at_once_and_later_ones_are_not(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_endpoint, "_MAX_IN_FLIGHT", 2)

    async def run() -> None:
        async with lifespan(app):
            waiting = [Client(app, "/v1/table/tides/describe") for _ in range(2)]
            for client in waiting:
                await client.reading.wait()
            status, headers, document = await Client(app, "/health", method="GET").reply()
            assert (status, document["code"], headers["retry-after"]) == (503, 17, "1")
            for client in waiting:
                client.send(b"{}", more=False)
                status, _, document = await client.reply()
                assert (status, document["code"]) == (401, 16)
            status, _, document = await Client(app, "/health", method="GET").reply()
            assert (status, document["status"]) == (200, "ok")

    asyncio.run(run())
