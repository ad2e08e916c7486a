"""Tokens of Google: the exact boundary that is sent, and a fake that grants what the boundary says."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth.transport.requests import Request
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import GCSStore

from penstock.catalog import Access
from penstock.catalog.vending._gcs import GcsVendor
from penstock.catalog.vending._locations import make_locations
from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.testing import FakeGcs
from penstock.testing._gcs import _error

if TYPE_CHECKING:
    from obstore.store import GCSCredential

STS = "https://sts.googleapis.com/v1/token"
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"
BOUNDARY = re.compile(
    r"resource\.name\.startsWith\('projects/_/buckets/(?P<bucket>[^']+)/objects/(?P<objects>[^']+)'\) \|\| "
    r"api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)\.startsWith\('(?P<listed>[^']+)'\)"
)


class TokenService:
    """Google's two token endpoints: a service account's token, and its exchange for a narrower one."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, str]] = []
        self.boundaries: dict[str, dict[str, Any]] = {}
        self.status, self.answers_lifetime = 200, True
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: value for name, [value] in parse_qs(body, strict_parsing=True).items()}
                status, answer = service.answer(self.path, form)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/account":
            return 200, {"access_token": "wide", "expires_in": 3600, "token_type": "Bearer"}
        self.exchanges.append(form)
        if self.status != 200:
            return self.status, {"error": "invalid_request", "error_description": "the account is disabled"}
        token = f"narrow-{len(self.exchanges)}"
        self.boundaries[token] = json.loads(unquote(form["options"]))
        lifetime = {"expires_in": 1200} if self.answers_lifetime else {}
        return 200, {"access_token": token, "issued_token_type": TOKEN_TYPE, "token_type": "Bearer", **lifetime}

    def request(self, url: str, *args: Any, **kwargs: Any) -> Any:
        """Send a request of google-auth to this server; the address of the exchange is fixed in google-auth."""
        return Request()(f"{self.url}/sts" if url == STS else url, *args, **kwargs)

    def account(self, **changes: str) -> str:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        fields = {"type": "service_account", "client_email": "server@lake", "private_key": pem}
        return json.dumps({**fields, "token_uri": f"{self.url}/account", **changes})

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BoundedGcs(FakeGcs):
    """A bucket whose objects are reached with narrowed tokens only, as far as their boundaries allow."""

    def __init__(self, tokens: TokenService) -> None:
        super().__init__()
        self._tokens = tokens

    def _respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Any:
        boundary = self._tokens.boundaries.get(headers.get("authorization", "").removeprefix("Bearer "))
        if boundary is None or not self._allows(boundary, method, target):
            raise _error(403, "AccessDenied")
        return super()._respond(method, target, headers, body)

    def _allows(self, boundary: dict[str, Any], method: str, target: str) -> bool:
        address = urlsplit(target)
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        [rule] = boundary["accessBoundary"]["accessBoundaryRules"]
        condition = BOUNDARY.fullmatch(rule["availabilityCondition"]["expression"])
        assert condition is not None
        if bucket != condition["bucket"] or not rule["availableResource"].endswith(f"/buckets/{bucket}"):
            return False
        if method not in ("GET", "HEAD") and rule["availablePermissions"] != ["inRole:roles/storage.objectUser"]:
            return False
        if key:
            return key.startswith(condition["objects"])
        return parse_qs(address.query).get("prefix", [""])[0].startswith(condition["listed"])


@pytest.fixture
def tokens() -> Iterator[TokenService]:
    service = TokenService()
    yield service
    service.stop()


def new_vendor(tokens: TokenService, *, lifetime_s: float = 3600, **account: str) -> GcsVendor:
    return GcsVendor(
        make_locations("gs://bucket/teams", [], "gs"),
        options={"service_account_key": tokens.account(**account)},
        lifetime_s=lifetime_s,
        request=tokens.request,
    )


@pytest.mark.parametrize(
    ("access", "role"), [("read", "roles/storage.objectViewer"), ("write", "roles/storage.objectUser")]
)
def test_the_boundary_names_the_table_alone(tokens: TokenService, access: Access, role: str) -> None:
    vendor = new_vendor(tokens)
    location = vendor.new_location()
    credentials = vendor.vend(location, access)
    path = location.removeprefix("gs://bucket/") + "/"
    rule = {
        "availablePermissions": [f"inRole:{role}"],
        "availableResource": "//storage.googleapis.com/projects/_/buckets/bucket",
        "availabilityCondition": {
            "expression": f"resource.name.startsWith('projects/_/buckets/bucket/objects/{path}') || "
            f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('{path}')"
        },
    }
    [form] = tokens.exchanges
    assert json.loads(unquote(form.pop("options"))) == {"accessBoundary": {"accessBoundaryRules": [rule]}}
    assert form == {
        "grant_type": GRANT,
        "subject_token": "wide",
        "subject_token_type": TOKEN_TYPE,
        "requested_token_type": TOKEN_TYPE,
    }
    assert credentials.options == {"google_token": "narrow-1"}


def test_a_lifetime_is_that_of_the_token_or_shorter(tokens: TokenService) -> None:
    def lifetime_s(asked_s: float) -> float:
        vendor = new_vendor(tokens, lifetime_s=asked_s)
        found = vendor.vend(vendor.new_location(), "read").lifetime_s
        assert found is not None
        return found

    assert 1100 < lifetime_s(3600) <= 1200
    assert lifetime_s(60) == 60
    tokens.answers_lifetime = False  # then it is that of the account's token
    assert 3500 < lifetime_s(7200) <= 3600


def test_a_token_reaches_its_table_and_nothing_else(tokens: TokenService) -> None:
    with BoundedGcs(tokens) as bucket:
        address = json.loads(bucket.options["service_account_key"])["gcs_base_url"]
        vendor = new_vendor(tokens, gcs_base_url=address)
        mine, other = (vendor.new_location().removeprefix("gs://bucket/") for _ in range(2))
        for key in (f"{mine}/x", f"{mine}0/x", f"{other}/x", "x", "teams/x"):
            bucket.add(key, b"value")
        for access in get_args(Access):
            options = vendor.vend(f"gs://bucket/{mine}", access).options
            assert options["google_base_url"] == address
            store = open_gcs(options["google_base_url"], options["google_token"])
            assert obstore.get(store, f"{mine}/x").bytes() == b"value"
            assert [meta["path"] for page in obstore.list(store, mine) for meta in page] == [f"{mine}/x"]
            for key in (f"{mine}0/x", f"{other}/x", "x", "teams/x"):
                refused(obstore.get, store, key)
                refused(obstore.put, store, key, b"changed")
                refused(obstore.delete, store, key)
            for prefix in (other, "teams", None):
                refused(lambda prefix=prefix, store=store: list(obstore.list(store, prefix)))
            if access == "read":
                refused(obstore.put, store, f"{mine}/y", b"new", use_multipart=False)
                refused(obstore.delete, store, f"{mine}/x")
            else:
                obstore.put(store, f"{mine}/y", b"new", use_multipart=False)
                obstore.put(store, f"{mine}/z", b"new" * (4 << 20), use_multipart=True, chunk_size=5 << 20)
                obstore.delete(store, [f"{mine}/y", f"{mine}/z"])


def open_gcs(address: str, token: str) -> GCSStore:
    def provider() -> "GCSCredential":
        return {"token": token, "expires_at": None}

    return GCSStore(
        "bucket",
        config={"base_url": address},
        client_options={"allow_http": True},
        credential_provider=provider,
    )


def refused(verb: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises((GenericError, PermissionDeniedError), match="403"):
        verb(*arguments, **options)


@pytest.mark.parametrize(("status", "error"), [(400, AccessDeniedError), (503, StorageError)])
def test_a_refusal_says_what_to_check(tokens: TokenService, status: int, error: type[Exception]) -> None:
    vendor = new_vendor(tokens)
    tokens.status = status
    with pytest.raises(error, match="Google's token service") as raised:
        vendor.vend(vendor.new_location(), "read")
    assert type(raised.value) is error
    assert "wide" not in str(raised.value)


def test_a_token_service_that_is_away_is_a_storage_error(tokens: TokenService) -> None:
    vendor = new_vendor(tokens, token_uri="http://127.0.0.1:9/account")
    with pytest.raises(StorageError, match="cannot be reached"):
        vendor.vend(vendor.new_location(), "read")


def test_other_locations_are_refused_before_a_request(tokens: TokenService) -> None:
    vendor = new_vendor(tokens)
    for location in ("gs://bucket", "gs://bucket/teams", "gs://bucket/teams/') || true || ('", "s3://bucket/teams"):
        with pytest.raises(InvalidInputError):
            vendor.vend(location, "read")
    assert tokens.exchanges == []


def test_requests_to_google_run_at_once_and_have_a_timeout(tokens: TokenService) -> None:
    together, timeouts = threading.Barrier(2, timeout=60), []

    def request(url: str, *args: Any, **kwargs: Any) -> Any:
        if url == STS:
            together.wait()  # breaks if another thread waits for this one
        timeouts.append(kwargs["timeout"])
        return tokens.request(url, *args, **kwargs)

    vendor = GcsVendor(
        make_locations("gs://bucket/teams", [], "gs"),
        options={"service_account_key": tokens.account()},
        lifetime_s=3600,
        request=request,
    )
    with ThreadPoolExecutor(2) as threads:
        vended = list(threads.map(lambda _: vendor.vend(vendor.new_location(), "read"), range(2)))
    assert {each.options["google_token"] for each in vended} == {"narrow-1", "narrow-2"}
    assert max(timeouts) <= 30
