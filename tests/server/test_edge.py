"""Requests that come too slowly, or too many at once: the application in this process, and messages by hand."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message, Scope

from penstock.catalog._api_key import new_key
from penstock.catalog.registry import Registry, _audit
from penstock.server import ServerConfig, _endpoint, create_app
from penstock.server._dispatch import Answer, Dispatcher


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

    def __init__(
        self, app: Starlette, path: str, *, method: str = "POST", key: str = "", address: str = "192.0.2.7"
    ) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        scope: Scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"x-api-key", key.encode())] if key else [], "client": (address, 1), "scheme": "http",
            "server": ("127.0.0.1", 7117), "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        self.reading = asyncio.Event()
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    def send(self, body: bytes, *, more: bool) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        await self._task
        start, *rest = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, json.loads(b"".join(message["body"] for message in rest))

    async def _receive(self) -> Message:
        self.reading.set()
        return await self._inbox.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(dict(message))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with app.router.lifespan_context(app):
        yield


@pytest.mark.parametrize("parts", [(), (b'{"version"',)])
def test_a_body_that_does_not_arrive_is_not_waited_for(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, parts: Sequence[bytes]
) -> None:
    monkeypatch.setattr(_endpoint, "_BODY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(_endpoint, "_LINGER_S", 0.01)

    async def run() -> tuple[int, dict[str, str], Any]:
        async with lifespan(app):
            client = Client(app, "/v1/table/tides/describe", key=new_key().text)
            for part in parts:
                client.send(part, more=True)
            return await client.reply()

    status, headers, document = asyncio.run(run())
    assert (status, document["code"]) == (408, 13)
    assert headers["connection"] == "close"  # the rest of the body would be read as the next request
    assert document["instance"] == headers["x-request-id"]


@pytest.mark.parametrize("key", ["", "guess", new_key().text[:-1] + "-"], ids=["none", "guess", "mistyped"])
def test_without_a_key_no_body_is_waited_for(app: Starlette, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """The answer is there before the body is; the rest of it is discarded, so that the client sees the answer."""
    monkeypatch.setattr(_endpoint, "_LINGER_S", 3600)

    async def run() -> None:
        async with lifespan(app):
            client = Client(app, "/v1/table/tides/describe", key=key)
            await client.reading.wait()
            assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]
            client.send(b"{", more=True)
            client.send(b"}", more=False)
            status, headers, document = await client.reply()
            assert (status, document["code"], headers["connection"]) == (401, 16, "close")

    asyncio.run(run())


def test_bodies_on_their_way_hold_up_nobody_but_their_sender(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_endpoint, "_MAX_IN_FLIGHT", 1)
    monkeypatch.setattr(_endpoint, "_MAX_BODIES", 2)
    path, key = "/v1/table/tides/describe", new_key().text

    async def run() -> None:
        async with lifespan(app):
            waiting = [Client(app, path, key=key) for _ in range(2)]
            for client in waiting:
                await client.reading.wait()
            refused = Client(app, path, key=key)
            refused.send(b"{}", more=False)
            status, headers, document = await refused.reply()
            assert (status, document["code"], headers["retry-after"]) == (429, 21, "2")
            other = Client(app, path, key=key, address="192.0.2.8")
            other.send(b"{}", more=False)
            assert (await other.reply())[0] == 401
            for client in waiting:
                client.send(b"{}", more=False)
                assert (await client.reply())[0] == 401
            later = Client(app, path, key=key)
            later.send(b"{}", more=False)
            assert (await later.reply())[0] == 401

    asyncio.run(run())


def test_requests_beyond_the_limit_are_refused_at_once_and_health_and_later_ones_are_not(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_endpoint, "_MAX_IN_FLIGHT", 40)  # more than there are threads
    held, original = threading.Event(), Dispatcher.answer

    def answer(dispatcher: Dispatcher, operation: Any, call: Any) -> Answer:
        assert operation.path == "/health" or held.wait(60)
        return original(dispatcher, operation, call)

    monkeypatch.setattr(Dispatcher, "answer", answer)

    async def run() -> None:
        async with lifespan(app):
            busy = [Client(app, "/v1/whoami", method="GET", key=new_key().text) for _ in range(40)]
            await asyncio.sleep(0)
            status, headers, document = await Client(app, "/v1/whoami", method="GET", key=new_key().text).reply()
            assert (status, document["code"], headers["retry-after"]) == (503, 17, "1")
            assert (await Client(app, "/health", method="GET").reply())[0] == 200
            held.set()
            for client in busy:
                assert (await client.reply())[0] == 401
            assert (await Client(app, "/v1/whoami", method="GET", key=new_key().text).reply())[0] == 401

    asyncio.run(run())


def test_audit_events_that_are_lost_are_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(str(tmp_path / "database"))
    registry.migrate()
    key = registry.bootstrap() or ""
    registry.close()
    app = create_app(ServerConfig(database=str(tmp_path / "database"), storage=str(tmp_path / "tables")))
    monkeypatch.setattr(_audit, "_MAX_BUFFERED", 0)

    async def lost() -> str:
        client = Client(app, "/metrics", method="GET", key=key)
        await client._task
        lines = b"".join(message.get("body", b"") for message in client.sent).decode().splitlines()
        [line] = [line for line in lines if line.startswith("penstock_audit_events_dropped_total")]
        return line.rpartition(" ")[2]

    async def run() -> None:
        async with lifespan(app):
            assert await lost() == "0.0"
            described = Client(app, "/v1/table/tides/describe", key=key)
            described.send(b"{}", more=False)
            assert (await described.reply())[0] == 404
            assert await lost() == "1.0"

    asyncio.run(run())
