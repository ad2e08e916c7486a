"""Starting, stopping and dying: real processes."""

import http.client
import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from penstock.catalog._api_key import new_key
from penstock.cli import main
from tests.server.running import LIMIT_S, running
from tests.servers import new_database, postgres_url

AZURE = ("--option", "account_name=account", "--option", "account_key=c2VjcmV0")


def test_nothing_needs_to_be_configured(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.post("/v1/table/first/declare")
        assert server.post("/v1/table/first/describe")["location"].startswith(str(tmp_path / "home"))
        assert server.stop() == 0
    assert (tmp_path / "home" / "server").stat().st_mode & 0o077 == 0


def test_the_admins_key_is_in_a_private_file_once_over_two_starts(tmp_path: Path, database: str) -> None:
    with running(tmp_path, "--database", database) as server:
        [file] = Path(tmp_path, "home", "server").glob("admin-key")
        assert file.read_text().strip() == server.admin_key
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        server.stop()
        first_text = server.out.read_text()
        file.unlink()
        server.start()
        assert "admin-key" not in server.out.read_text()
        assert not file.exists()
        assert server.get("/v1/whoami")["server_admin"] is True
    assert "pen_" not in first_text + server.out.read_text() + server.log.read_text()


def test_the_admins_key_is_written_once_over_racing_starts(tmp_path: Path, database: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    storage = ("--storage", str(tmp_path / "tables"))
    with (
        running(tmp_path / "a", "--database", database, *storage, start=False) as first,
        running(tmp_path / "b", "--database", database, *storage, start=False) as second,
    ):
        for server in (first, second):
            server.start(wait=False)
        for server in (first, second):
            server.wait_until_ready()
        [key] = [server.admin_key for server in (first, second) if server.admin_key]
        for server in (first, second):
            assert server.get("/v1/whoami", key=key)["server_admin"] is True


def test_a_lost_key_of_the_admin_is_replaced(tmp_path: Path, database: str) -> None:
    with running(tmp_path, "--database", database) as server:
        lost, first_text = server.admin_key, server.out.read_text()
        server.stop()
        server.arguments = [*server.arguments, "--new-admin-key"]
        server.start()
        assert server.admin_key != lost
        assert server.out.read_text() == first_text
        assert server.get("/v1/whoami")["server_admin"] is True
        assert [key["member"] for key in server.get("/v1/namespace/$/key/list")["keys"]] == ["admin", "admin"]
        [event] = server.get("/v1/namespace/$/audit/list")["events"]
        assert (event["operation"], event["target"]) == ("create_key", "$")
        assert event["key_id"] == server.admin_key.split("_")[1]
        assert "--new-admin-key" in event["detail"]
        server.post(f"/v1/namespace/$/key/{lost.split('_')[1]}/revoke")
    assert "pen_" not in server.log.read_text()


def test_a_first_start_that_asks_for_a_new_key_makes_one(tmp_path: Path) -> None:
    with running(tmp_path, "--new-admin-key") as server:
        assert len(server.get("/v1/namespace/$/key/list")["keys"]) == 1


def test_kill_and_restart_keep_everything(tmp_path: Path, database: str) -> None:
    with running(tmp_path, "--database", database) as server:
        key = server.new_key("default", "alice", "writer")
        names = [f"t{number}" for number in range(10)]
        for name in names:
            server.post(f"/v1/table/{name}/declare", key=key)
        server.stop(signal.SIGKILL)
        server.start()
        assert server.get("/v1/namespace/default/table/list", key=key)["tables"] == names
        events = server.get("/v1/namespace/default/audit/list")["events"]
        assert {event["target"] for event in events if event["operation"] == "declare_table"} == {
            f"default${name}" for name in names
        }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_in_flight_is_answered_after_sigterm(tmp_path: Path, workers: int) -> None:
    with running(tmp_path, "--workers", str(workers)) as server:
        body = json.dumps({"properties": {"a": "b"}}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
        connection.putrequest("POST", "/v1/table/late/declare")
        connection.putheader("authorization", f"Bearer {server.admin_key}")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders()
        connection.send(body[:5])
        time.sleep(1)  # until the server has begun to read
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        _wait_until_refused(server.port)
        connection.send(body[5:])
        response = connection.getresponse()
        assert response.status == 200, response.read()
        location = json.loads(response.read())["location"]
        connection.close()
        assert server.process.wait(LIMIT_S) == 0
        server.start()
        assert server.post("/v1/table/late/describe")["location"] == location
        events = server.get("/v1/namespace/default/audit/list")["events"]
        assert "declare_table" in {event["operation"] for event in events}


def _wait_until_refused(port: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError("the server still accepts connections")


def test_what_was_answered_before_sigterm_is_kept(tmp_path: Path, database: str) -> None:
    """Clients that race the stop: a table that was answered for exists, and every other request failed to connect."""
    with running(tmp_path, "--database", database, "--rate-limit", "100000") as server:
        answered: list[str] = []
        stopping = threading.Event()

        def declare(client: int) -> None:
            for number in range(1000):
                name = f"c{client}-{number}"
                try:
                    reply = server.request("POST", f"/v1/table/{name}/declare", {}, key=server.admin_key)
                except (OSError, http.client.HTTPException):
                    assert stopping.is_set()
                    return
                assert reply.status == 200
                answered.append(name)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(declare, client) for client in range(4)]
            while len(answered) < 20 and not any(future.done() for future in futures):
                time.sleep(0.02)
            stopping.set()
            assert server.stop() == 0
        for future in futures:
            future.result()
        server.start()
        kept: list[str] = []
        token = ""
        while True:
            page = server.get(f"/v1/namespace/default/table/list?limit=500{token}")
            kept += page["tables"]
            if "page_token" not in page:
                break
            token = f"&page_token={page['page_token']}"
        assert set(answered) <= set(kept)
        assert len(answered) >= 20


def test_processes_on_one_postgresql_serve_one_state(tmp_path: Path) -> None:
    database, storage = new_database(), ("--storage", str(tmp_path / "tables"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        running(tmp_path / "a", "--database", database, *storage, "--workers", "2") as first,
        running(tmp_path / "b", "--database", database, *storage) as second,
    ):
        second.admin_key = first.admin_key
        key = first.new_key("default", "alice", "writer")
        for number in range(8):
            first.post(f"/v1/table/t{number}/declare", key=key)
            assert second.post(f"/v1/table/t{number}/describe", key=key)["table"] == f"t{number}"
        with ThreadPoolExecutor(8) as pool:
            replies = pool.map(
                lambda server: server.request("POST", "/v1/table/raced/declare", {}, key=key).status,
                [first, second] * 4,
            )
        assert sorted(replies) == [200] + [409] * 7
        second.post(f"/v1/namespace/default/key/{key.split('_')[1]}/revoke")
        deadline = time.monotonic() + 60
        while first.request("GET", "/v1/whoami", key=key).status != 401:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        text = first.request("GET", "/metrics", key=first.admin_key).body.decode()
        [count] = re.findall(r'path="/v1/table/\{id\}/declare",status="200"\} (\S+)', text)
        assert float(count) >= 8  # of both workers together


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2") as server:
        server.post("/v1/table/one/declare")
        server.stop(signal.SIGKILL)
        _wait_until_refused(server.port)
        server.start()
        assert server.post("/v1/table/one/describe")["table"] == "one"
        assert server.stop() == 0


def test_keys_and_addresses_are_limited(tmp_path: Path) -> None:
    with running(tmp_path, "--rate-limit", "3") as server:
        statuses = [server.request("GET", "/v1/whoami", key=server.admin_key) for _ in range(30)]
        refused = [reply for reply in statuses if reply.status == 429]
        assert refused
        assert refused[0].document["code"] == 21
        assert int(refused[0].headers["retry-after"]) >= 1
        assert server.request("GET", "/health").status == 200
        time.sleep(int(refused[0].headers["retry-after"]))
        guesses = [server.request("GET", "/v1/whoami", key=new_key().text).status for _ in range(30)]
        assert guesses[0] == 401
        assert 429 in guesses
        assert set(guesses) == {401, 429}


@pytest.mark.parametrize(("proxies", "limited"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_clients_behind_a_proxy_are_told_apart_if_it_is_trusted(tmp_path: Path, proxies: str, limited: bool) -> None:
    with running(tmp_path, "--rate-limit", "1", FORWARDED_ALLOW_IPS=proxies) as server:
        statuses = [
            server.request(
                "GET", "/v1/whoami", key=new_key().text, headers={"x-forwarded-for": f"198.51.100.{n}"}
            ).status
            for n in range(20)
        ]
        assert (429 in statuses) is limited


def test_guesses_do_not_lock_out_valid_keys_of_the_same_address(tmp_path: Path) -> None:
    """Also after the cache of valid keys is over, and after rights have changed."""
    with running(tmp_path, "--rate-limit", "2") as server:
        key = server.new_key("default", "bob", "reader")
        assert server.request("GET", "/v1/whoami", key=key).status == 200
        for change in (False, True):
            if change:
                server.new_key("default", "eve", "reader")
            else:
                time.sleep(3.5)
            with ThreadPoolExecutor(8) as clients:
                guesses = [clients.submit(server.request, "GET", "/v1/whoami", key=new_key().text) for _ in range(60)]
                assert 429 in {guess.result().status for guess in guesses}
            assert server.request("GET", "/v1/whoami", key=key).status == 200
        assert {server.request("GET", "/v1/whoami", key="no key").status for _ in range(20)} == {401}


def test_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    arguments = ("--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key))
    with running(tmp_path, *arguments, start=False) as server:
        server.start(wait=False)
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(r"Serving on https://0.0.0.0:(\d+)", server.out.read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("localhost", int(found[1]), timeout=LIMIT_S, context=context)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        assert "Warning" not in server.log.read_text()
        assert server.stop() == 0


def test_an_open_port_without_tls_is_warned_of(tmp_path: Path) -> None:
    with running(tmp_path, "--host", "0.0.0.0") as server:
        assert "--tls-cert" in server.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "--port"),
        (["--workers", "0"], "--workers"),
        (["--rate-limit", "0"], "--rate-limit"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--tls-cert", "x.pem", "--tls-key", "y.pem"], "x.pem"),
        (["--credential-lifetime", "0"], "--credential-lifetime"),
        (["--retention-days", "-1"], "--retention-days"),
        (["--host", "192.0.2.1"], "--host"),
        (["--storage", "ftp://x/y"], "ftp"),
        (["--storage", "s3://bucket/x"], "--allow-shared-credentials"),
        ([*AZURE, "--storage", "az://lake/tables"], "--hierarchical"),
        ([*AZURE, "--storage", "az://lake/tables", "--hierarchical", "--host", "192.0.2.1"], "cannot listen"),
        (["--database", "mysql://x/y"], "postgresql://"),
        (["--option", "secret"], "KEY=VALUE"),
    ],
)
def test_a_wrong_configuration_is_refused_with_a_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert main(["serve", "--port", "0", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_port_in_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    out, err = capsys.readouterr()
    assert "--port" in err
    assert "pen_" not in out  # the key would be lost


def test_a_database_that_does_not_answer_is_a_sentence_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    assert main(["serve", "--port", "0", "--database", "postgresql://u:hush-hush@127.0.0.1:1/x"]) == 1
    out, err = capsys.readouterr()
    assert "127.0.0.1" in err
    assert "hush-hush" not in out + err


def test_health_is_bad_without_a_database(tmp_path: Path) -> None:
    database = new_database()
    with running(tmp_path, "--database", database) as server:
        with psycopg.connect(f"{postgres_url()}/postgres", autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{database.rpartition("/")[2]}" WITH (FORCE)')
        deadline = time.monotonic() + 60
        while (reply := server.request("GET", "/health")).status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert (reply.status, reply.document["code"]) == (503, 17)
        unknown = server.request("GET", "/v1/whoami", key=server.admin_key[:-8] + "x")
        known = server.request("GET", "/v1/whoami", key=server.admin_key)
        assert unknown.status in (401, 503)
        assert known.status == 500, "a database that does not exist is no reason to retry"
        for answer in (reply, known):  # what the server is made of is nobody's business
            assert "127.0.0.1" not in answer.document["error"]
            assert answer.document["instance"] == answer.headers["x-request-id"]
