"""What S3 clients get with their credentials, and what the server says when it gets none."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

import pytest

from penstock.catalog.vending import Vendor, make_vendor
from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.storage import open_store
from tests.catalog.vending.vendors import s3_vendor
from tests.servers import sts_server


def s3_vendor_with(options: dict[str, str], role_arn: str | None = None, **changes: Any) -> Vendor:
    server = sts_server()
    return make_vendor(
        f"s3://{server.bucket}/teams",
        options=server.options | options,
        role_arn=role_arn or server.role_arn,
        lifetime_s=900,
        allow_shared=False,
        **changes,
    )


@pytest.mark.parametrize(
    ("asked_s", "low_s", "high_s"),
    [(1800, 1700, 1800), (60, 59, 60), (1e6, 43_000, 43_200)],
    ids=["as asked", "renewed earlier than the shortest lifetime of S3", "the longest lifetime of S3"],
)
def test_a_lifetime_is_that_of_the_credentials_or_shorter(asked_s: float, low_s: float, high_s: float) -> None:
    vendor = s3_vendor(lifetime_s=asked_s)
    lifetime_s = vendor.vend(vendor.new_location(), "read").lifetime_s
    assert lifetime_s is not None
    assert low_s <= lifetime_s <= high_s


def test_clients_need_no_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server = sts_server()
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    vendor = s3_vendor_with({})
    by_environment = make_vendor(
        vendor.storage, options={}, role_arn=server.role_arn, lifetime_s=900, allow_shared=False
    )
    for name in server.options:
        monkeypatch.delenv(f"AWS_{name.upper()}")
    for each in (vendor, by_environment):
        uri = each.new_location()
        options = each.vend(uri, "write").options
        assert set(options) == {
            *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
            *("aws_region", "aws_endpoint"),
        }
        open_store(uri, options=options).put("key", b"value")


def test_credentials_cover_what_the_admin_registers() -> None:
    vendor = s3_vendor(locations=["s3://lake/registered"])
    root = open_store("s3://lake", options=vendor.server_options)
    root.put("registered/table/key", b"value")
    root.put("registered/other/key", b"value")
    options = vendor.vend("s3://lake/registered/table", "write").options
    assert [info.key for info in open_store("s3://lake/registered/table", options=options).list()] == ["key"]
    with pytest.raises(AccessDeniedError):
        open_store("s3://lake/registered/other", options=options).get("key")
    with pytest.raises(InvalidInputError, match="was not chosen by this server"):
        vendor.remove("s3://lake/registered/table")
    assert bytes(root.get("registered/table/key")) == b"value"


def test_other_locations_are_refused_before_a_request() -> None:
    vendor = s3_vendor_with({"endpoint": "http://127.0.0.1:9"})
    for location in ("s3://lake", "s3://lake/teams", "s3://lake/teams/*", "s3://other/x", "lake", ""):
        with pytest.raises(InvalidInputError):
            vendor.vend(location, "read")
        with pytest.raises(InvalidInputError):
            vendor.check_location(location)
        with pytest.raises(InvalidInputError):
            vendor.remove(location)


@pytest.mark.parametrize(
    ("options", "role_arn", "error", "message"),
    [
        ({}, "arn:aws:iam::role/missing", AccessDeniedError, "trust policy"),
        ({"secret_access_key": "wrong"}, None, AccessDeniedError, "secret key and its clock"),
        ({"access_key_id": "unknown"}, None, AccessDeniedError, "renew them"),
        ({"endpoint": "http://127.0.0.1:9"}, None, StorageError, "cannot be reached"),
    ],
)
def test_a_refusal_says_what_to_check(
    options: dict[str, str], role_arn: str | None, error: type[Exception], message: str
) -> None:
    vendor = s3_vendor_with(options, role_arn)
    with pytest.raises(error, match=message) as raised:
        vendor.vend(vendor.new_location(), "read")
    assert "wrong" not in str(raised.value)


@pytest.fixture
def refusals() -> Iterator[ThreadingHTTPServer]:
    """A token service that answers the status and the code that are in the path of its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, code, message = unquote(self.path).strip("/").split("/")
            error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            body = f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>".encode()
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ("400/ValidationError/DurationSeconds exceeds MaxSessionDuration", InvalidInputError, "session duration"),
        ("400/PackedPolicyTooLarge/size", InvalidInputError, "check the role and the storage"),
        ("403/ExpiredToken/expired", AccessDeniedError, "renew them"),
        ("403/RequestExpired/late", AccessDeniedError, "clock"),
        ("400/Throttling/slowly", StorageError, "wait and retry"),
        ("503/ServiceUnavailable/later", StorageError, "wait and retry"),
    ],
)
def test_answers_of_the_token_service_are_translated(
    refusals: ThreadingHTTPServer, answer: str, error: type[Exception], message: str
) -> None:
    vendor = s3_vendor_with({"endpoint": f"http://127.0.0.1:{refusals.server_port}/{quote(answer)}"})
    with pytest.raises(error, match=message) as raised:
        vendor.vend(vendor.new_location(), "read")
    assert type(raised.value) is error


def test_a_server_without_credentials_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    server = sts_server()
    options = {"endpoint": server.endpoint, "region": "us-east-1"}
    vendor = make_vendor(
        "s3://lake/teams", options=options, role_arn=server.role_arn, lifetime_s=900, allow_shared=False
    )
    with pytest.raises(AccessDeniedError, match="has no AWS credentials"):
        vendor.vend(vendor.new_location(), "read")
