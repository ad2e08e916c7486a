"""What a server depends on fails or attacks it: the token service, a tenant's objects, slow connections."""

import http.client
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import penstock
from tests.server.running import LIMIT_S, RunningServer, running

ROLE = "arn:aws:iam::123456789012:role/secret-role"
REASON = "internal-server-name may not"
ANSWER = (
    f"<ErrorResponse><Error><Code>ValidationError</Code><Message>{REASON}</Message></Error></ErrorResponse>".encode()
)


class TokenService(BaseHTTPRequestHandler):
    """Refuses every request, or does not answer."""

    open = threading.Event()
    asked = threading.Semaphore(0)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.asked.release()
        self.open.wait(LIMIT_S)
        self.send_response(400)
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)


@pytest.fixture
def on_s3(tmp_path: Path) -> Iterator[RunningServer]:
    TokenService.open.set()
    service = ThreadingHTTPServer(("127.0.0.1", 0), TokenService)
    thread = threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    settings = {
        "endpoint": f"http://127.0.0.1:{service.server_port}",
        "access_key_id": "k",
        "secret_access_key": "s",
        "region": "us-east-1",
    }
    options = [part for name, value in settings.items() for part in ("--option", f"{name}={value}")]
    try:
        with running(tmp_path, "--storage", "s3://lake/x", "--role-arn", ROLE, *options) as server:
            yield server
    finally:
        TokenService.open.set()
        service.shutdown()
        thread.join()
        service.server_close()


def test_a_refusal_of_the_token_service_is_logged_and_not_told(on_s3: RunningServer) -> None:
    key = on_s3.new_key("default", "bob", "writer")
    for _ in range(2):  # the name is not taken by the first attempt
        reply = on_s3.request("POST", "/v1/table/tides/declare", {}, key=key)
        assert (reply.status, reply.document["code"]) == (500, 18)
        assert "misconfigured" in reply.document["error"]
        assert b"arn:" not in reply.body
        assert REASON.encode() not in reply.body
    assert ROLE in on_s3.log.read_text()
    assert REASON in on_s3.log.read_text()
    assert on_s3.get("/v1/namespace/default/table/list", key=key)["tables"] == []


def test_a_token_service_that_hangs_holds_up_nobody_else(on_s3: RunningServer) -> None:
    key = on_s3.new_key("default", "bob", "writer")
    tables = [f"t{number}" for number in range(40)]
    for table in tables:
        on_s3.post(f"/v1/table/{table}/declare", {"vend_credentials": False}, key=key)
    TokenService.open.clear()
    statuses: list[int] = []

    def describe(table: str) -> None:
        statuses.append(on_s3.request("POST", f"/v1/table/{table}/describe", {}, key=key).status)

    clients = [threading.Thread(target=describe, args=(table,)) for table in tables]
    for client in clients:
        client.start()
    for _ in range(8):
        assert TokenService.asked.acquire(timeout=LIMIT_S)
    # Answered while the requests of the 40 wait: none of those can end before the service answers or times out.
    assert on_s3.get("/v1/whoami", key=key)["member"] == "bob"
    TokenService.open.set()
    for client in clients:
        client.join(LIMIT_S)
    assert set(statuses) == {500, 503}, "8 were refused by the service, and the others did not wait for it"
    assert len(statuses) == 40


class HangingStore(TokenService):
    """Does not answer until the end of the test."""

    open = threading.Event()
    asked = threading.Semaphore(0)

    do_GET = do_HEAD = TokenService.do_POST  # noqa: N815


def test_tables_that_the_server_opens_hold_up_nobody_else(tmp_path: Path) -> None:
    store = ThreadingHTTPServer(("127.0.0.1", 0), HangingStore)
    threading.Thread(target=store.serve_forever, args=(0.02,), daemon=True).start()
    settings = {"endpoint": f"http://127.0.0.1:{store.server_port}", "access_key_id": "k", "secret_access_key": "s"}
    options = [part for name, value in settings.items() for part in ("--option", f"{name}={value}")]
    detailed = {"load_detailed_metadata": True}
    with running(tmp_path, "--storage", "s3://lake/x", "--allow-shared-credentials", *options) as server:
        keys = [server.new_key("default", f"reader-{number}", "reader") for number in range(5)]
        server.post("/v1/table/tides/declare")

        def describe(key: str) -> int:
            return server.request("POST", "/v1/table/tides/describe", detailed, key=key).status

        waiting = [threading.Thread(target=describe, args=(key,), daemon=True) for key in keys[:4]]
        for client in waiting:
            client.start()
            assert HangingStore.asked.acquire(timeout=LIMIT_S)
        refused = [describe(keys[0]), describe(keys[4])]
        answered = server.get("/v1/whoami", key=keys[0])["member"]
        # Else the requests that wait for the store ended before, and the others prove nothing.
        assert all(client.is_alive() for client in waiting)
        assert (refused, answered) == ([429, 503], "reader-0")
        HangingStore.open.set()
        for client in waiting:
            client.join(LIMIT_S)
    store.shutdown()
    store.server_close()


def test_connections_beyond_the_limit_of_files_are_refused_at_once(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))  # inherited by the server
    try:
        with running(tmp_path) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            idle = [socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) for _ in range(150)]
            assert server.request("GET", "/health").status == 503
            for connection in idle:
                connection.close()
            deadline = time.monotonic() + LIMIT_S
            while server.request("GET", "/health").status != 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def on_folder(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path, "--storage", str(tmp_path / "tables")) as server:
        yield server


def peak_kib(server: RunningServer) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_a_table_with_a_huge_object_is_not_read(on_folder: RunningServer) -> None:
    key = on_folder.new_key("default", "bob", "writer")
    location = on_folder.post("/v1/table/tides/declare", key=key)["location"]
    penstock.create(location, {"height": "float32"})
    described = {"load_detailed_metadata": True}
    assert on_folder.post("/v1/table/tides/describe", described, key=key)["version"] >= 0
    before = peak_kib(on_folder)
    for size in (5 << 20, 2 << 30):
        for path in Path(location).rglob("*"):
            if path.is_file():
                os.chmod(path, 0o644)
                os.truncate(path, size)
        reply = on_folder.request("POST", "/v1/table/tides/describe", described, key=key)
        assert (reply.status, reply.document["code"]) == (400, 13)
        assert "too large for the server" in reply.document["error"]
    assert peak_kib(on_folder) - before < 512 * 1024


def test_the_audit_log_names_the_table_whose_credentials_were_issued(on_folder: RunningServer) -> None:
    key = on_folder.new_key("default", "bob", "admin")
    location = on_folder.post("/v1/table/tides/declare", key=key)["location"]
    on_folder.post("/v1/table/other/declare", key=key)
    issued = on_folder.get(f"/v1/table/other/credentials?location={location}", key=key)
    assert issued["table"] == "tides"
    deadline = time.monotonic() + LIMIT_S
    while True:
        events = on_folder.get("/v1/namespace/default/audit/list", key=key)["events"]
        found = [event["target"] for event in events if event["operation"] == "refresh_credentials"]
        if found or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert found == ["default$tides"]


def test_a_connection_without_a_whole_request_is_closed(on_folder: RunningServer) -> None:
    requests = [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /health HT"]
    with ExitStack() as stack:
        address = "127.0.0.1", on_folder.port
        opened = [stack.enter_context(socket.create_connection(address, timeout=LIMIT_S)) for _ in requests]
        for part in (slice(-2), slice(-2, -1), slice(-1, None)):
            for connection, sent in zip(opened, requests, strict=True):
                connection.sendall(sent[part])
            time.sleep(0.2)
        for connection in opened:
            while connection.recv(4096):  # until the server closes; raises after the limit
                pass


def test_connections_serve_any_number_of_requests(on_folder: RunningServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", on_folder.port, timeout=LIMIT_S)
    connection.connect()
    used = connection.sock
    for pause_s in (0.0, 1.0, 17.0):  # the last one is longer than headers may take
        time.sleep(pause_s)
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert connection.sock is used
    connection.close()
