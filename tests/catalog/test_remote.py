"""The catalog of a server: what goes wrong on the way, and what is sent."""

import json
import pickle
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from penstock.catalog import RemoteCatalog, ServerSettings, TableAddress, TableCredentials
from penstock.catalog._api_key import new_key
from penstock.catalog._http import ServerApi
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    StorageError,
)

KEY = new_key().text
ADDRESS = TableAddress("team", "robot_telemetry")
DESCRIBED = {
    "table": "robot_telemetry", "namespace": ["team"], "location": "s3://lake/4f", "created_at_millis": 5,
    "storage_options": {
        "aws_access_key_id": "id", "aws_secret_access_key": "hidden", "aws_session_token": "hidden",
        "aws_region": "eu-west-1", "aws_endpoint": "http://s3",
    },
}  # fmt: skip


class Script:
    """A server that gives the next answer of a list to each request; the last one repeats."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.skew_s = 0.0
        self.url = ""

    def next(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving(*answers: Any, tls: ssl.SSLContext | None = None) -> Iterator[Script]:
    script = Script(*answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            script.requests.append((self.command, self.path, dict(self.headers), json.loads(body or b"null")))
            answer = script.next()
            if answer is None:  # the connection ends without an answer
                self.close_connection = True
                return
            status, headers, document = answer
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"x-request-id": "r1", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST  # noqa: N815

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(int(time.time() + script.skew_s))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


def ok(document: Any = None, **headers: str) -> Any:
    return 200, headers, DESCRIBED if document is None else document


def refusal(status: int, code: int, message: str = "no", **headers: str) -> Any:
    return status, headers, {"error": message, "code": code, "detail": "", "instance": "r1"}


def settings(script: Script) -> ServerSettings:
    return ServerSettings(script.url, KEY, "team", "PENSTOCK_API_URL", "PENSTOCK_API_KEY")


class Sleeps:
    """A clock that runs only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def catalog(script: Script, sleeps: Sleeps | None = None) -> RemoteCatalog:
    found = sleeps or Sleeps()
    api = ServerApi(settings(script), sleep=found.sleep, clock=lambda: found.now_s)
    return RemoteCatalog(settings(script), api=api)


def expiring(seconds: float, skew_s: float = 0.0) -> dict[str, Any]:
    options = DESCRIBED["storage_options"]
    assert isinstance(options, dict)
    millis = str(int((time.time() + skew_s + seconds) * 1000))
    return {**DESCRIBED, "storage_options": {**options, "expires_at_millis": millis}}


@pytest.mark.parametrize("skew_s", [0.0, 7200.0, -7200.0])
def test_one_request_finds_a_table_with_credentials(skew_s: float) -> None:
    with serving(ok(expiring(100, skew_s))) as script:
        script.skew_s = skew_s  # lifetimes do not depend on the clock of the client
        entry = catalog(script).find(ADDRESS, access="read")
        [(method, path, headers, body)] = script.requests
    assert (method, path) == ("POST", "/v1/table/team$robot_telemetry/describe")
    assert body == {"vend_credentials": True, "access": "read"}
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (entry.uri, entry.created_us) == ("s3://lake/4f", 5000)
    assert entry.storage_options == {"aws_region": "eu-west-1", "aws_endpoint": "http://s3"}
    assert entry.credentials is not None
    assert set(entry.credentials.options) == {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
    assert entry.credentials.lifetime_s is not None
    assert 60 < entry.credentials.lifetime_s <= 100
    assert entry.issuer == TableCredentials(settings(script), ADDRESS, "s3://lake/4f", "read")
    assert not {KEY, "hidden"} & set(repr(entry).replace("'", " ").split())


def test_a_folder_has_no_issuer() -> None:
    with serving(ok({**DESCRIBED, "location": "/tables/4f", "storage_options": {}})) as script:
        entry = catalog(script).find(ADDRESS)
    assert (entry.issuer, entry.credentials, entry.storage_options) == (None, None, {})


def test_the_issuer_survives_pickling_and_renews() -> None:
    with serving(ok(expiring(50))) as script:
        issuer = pickle.loads(pickle.dumps(TableCredentials(settings(script), ADDRESS, "s3://lake/4f", None)))
        found = issuer.issue()
        [(method, path, _, _)] = script.requests
    assert (method, path) == ("GET", "/v1/table/team$robot_telemetry/credentials?location=s3%3A%2F%2Flake%2F4f")
    assert found.options["aws_session_token"] == "hidden"
    assert found.lifetime_s is not None
    assert 20 < found.lifetime_s <= 50
    assert KEY not in repr(issuer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [(refusal(404, 4), "since it was opened"), (refusal(403, 15), "no"), (ok({"storage_options": {}}), "issues none")],
)
def test_an_issuer_that_refuses(answer: Any, message: str) -> None:
    with serving(answer) as script, pytest.raises(AccessDeniedError, match=message):
        TableCredentials(settings(script), ADDRESS, "s3://lake/4f", None).issue()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (refusal(401, 16, "the key is revoked"), AccessDeniedError, r"revoked \(request r1\).*PENSTOCK_API_KEY"),
        (refusal(403, 15, "this needs the role writer"), AccessDeniedError, "role writer.*'team'"),
        (refusal(400, 13), InvalidInputError, "request r1"),
        (refusal(409, 5), AlreadyExistsError, "request r1"),
        (refusal(500, 18), StorageError, "request r1.*admin of http"),
        (
            (200, {"content-type": "text/html"}, b"<html>Log in</html>"),
            StorageError,
            "not a Penstock server.*text/html",
        ),
        ((302, {"location": "http://elsewhere"}, b""), StorageError, "not a Penstock server.*302"),
        (ok([1]), StorageError, "not a Penstock server"),
        (ok({}), StorageError, "does not understand"),
        (ok({**DESCRIBED, "storage_options": {"token": "t", "expires_at_millis": "soon"}}), StorageError, "understand"),
    ],
)
def test_an_answer_is_translated(answer: Any, error: type[PenstockError], message: str) -> None:
    with serving(answer) as script:
        with pytest.raises(error, match=message) as found:
            catalog(script).find(ADDRESS)
        assert len(script.requests) == 1
    assert type(found.value) is error
    assert KEY not in str(found.value)


def test_an_unknown_table_suggests_others_even_without_a_list() -> None:
    listed = {"name": "robot_telemetrie", "location": "/x", "created_at_millis": 1}
    answers = (refusal(404, 4), ok({"details": [listed]}), ok({"details": []}))
    with serving(*answers) as script, pytest.raises(NotFoundError, match=r"mean penstock://team/robot_telemetrie\?"):
        catalog(script).find(ADDRESS)
    with serving(refusal(404, 4), refusal(500, 18)) as script, pytest.raises(NotFoundError, match="to add it, create"):
        catalog(script).find(ADDRESS)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_away_for_a_moment_is_asked_again(status: int) -> None:
    sleeps = Sleeps()
    with serving((status, {}, b"<html>"), None, refusal(503, 17), ok()) as script:
        assert catalog(script, sleeps).find(ADDRESS).uri == "s3://lake/4f"
        assert len(script.requests) == 4
    assert len(sleeps.pauses) == 3


def test_a_server_that_stays_away_is_reported() -> None:
    sleeps = Sleeps()
    with serving((503, {}, b"<html>")) as script, pytest.raises(StorageError) as found:
        catalog(script, sleeps).find(ADDRESS)
    assert "does not answer (HTTP status 503); check the URL" in str(found.value)
    assert f"{script.url} (from PENSTOCK_API_URL)" in str(found.value)
    assert 3 < sleeps.now_s <= 5
    with pytest.raises(StorageError, match="does not answer"):  # it listens no more
        catalog(script).find(ADDRESS)


def test_a_throttled_client_waits_as_long_as_the_server_says() -> None:
    sleeps = Sleeps()
    with serving(refusal(429, 21, **{"retry-after": "7"}), ok()) as script:
        catalog(script, sleeps).find(ADDRESS)
    assert sleeps.pauses == [7.0]
    with serving(refusal(429, 21, **{"retry-after": "7"})) as script, pytest.raises(StorageError, match="too many"):
        catalog(script, sleeps := Sleeps()).find(ADDRESS)
    assert 50 < sleeps.now_s <= 60


def test_a_change_whose_answer_is_lost_is_not_repeated() -> None:
    with serving(None) as script:
        with pytest.raises(StorageError, match="does not answer"):
            catalog(script).rename(ADDRESS, TableAddress("team", "new"))
        assert len(script.requests) == 1


def test_a_reservation_that_another_process_makes_first_is_found() -> None:
    with serving(refusal(404, 4), refusal(409, 5), ok()) as script:
        assert catalog(script).reserve(ADDRESS).uri == "s3://lake/4f"
        assert [path.rpartition("/")[2] for _, path, _, _ in script.requests] == ["describe", "declare", "describe"]


def test_the_time_of_a_drop_is_the_servers() -> None:
    row = {"location": "/x", "created_at_millis": 1, "dropped_at_millis": 2, "purge_at_millis": 3}
    with serving(ok(row)) as script:
        entry = catalog(script).drop(ADDRESS)
    assert (entry.created_us, entry.dropped_us, entry.purge_us) == (1000, 2000, 3000)


def test_all_pages_of_a_list_are_read() -> None:
    row = {"location": "/x", "created_at_millis": 1}
    pages = [
        ok({"tables": ["a"], "details": [{"name": "a", **row}], "page_token": "a"}),
        ok({"tables": ["b"], "details": [{"name": "b", **row, "dropped_at_millis": 2, "purge_at_millis": 3}]}),
    ]
    with serving(*pages) as script:
        first, second = catalog(script).tables("team", dropped=True)
        assert "page_token=a" in script.requests[1][1]
    assert (first.address.table, second.address.table) == ("a", "b")
    assert (second.dropped_us, second.purge_us) == (2000, 3000)


def test_requests_pass_the_proxy_of_the_system_except_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_HTTP", "1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(ok()) as proxy, serving(ok()) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        RemoteCatalog(ServerSettings("http://lake.example", KEY)).find(ADDRESS)
        catalog(server).find(ADDRESS)
        assert [path for _, path, _, _ in proxy.requests] == [f"http://lake.example{server.requests[0][1]}"]


def test_a_certificate_must_be_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(ok(), tls=context) as script:
        with pytest.raises(StorageError, match=r"certificate cannot be verified.*SSL_CERT_FILE"):
            catalog(script).find(ADDRESS)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert catalog(script).find(ADDRESS).uri == "s3://lake/4f"
        assert len(script.requests) == 1


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine that nobody has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths
