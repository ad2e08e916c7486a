"""Object stores renew credentials that someone else issues."""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from penstock.errors import AccessDeniedError, InvalidInputError, StorageError, StorageTimeoutError
from penstock.storage import Credentials, ObjectStore, RetryPolicy, open_store
from penstock.storage._credentials import RenewedCredentials
from penstock.testing import FakeGcs
from tests.servers import StsServer, new_location, sts_server
from tests.storage.issuers import FixedIssuer, TokenIssuer, is_valid

POLICY = RetryPolicy(deadline_s=120, attempt_timeout_s=60, initial_backoff_s=0.01, max_backoff_s=0.1)
SHORT = RetryPolicy(deadline_s=1.5, attempt_timeout_s=1.5, initial_backoff_s=0.01, max_backoff_s=0.1)
LONG_S = 3600.0
PATIENCE_S = 120.0


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    """A store that refuses a token once it has expired."""
    with FakeGcs(accepts_token=is_valid) as server:
        server.add("t/a", b"data")
        yield server


def open_gcs(gcs: FakeGcs, issuer: TokenIssuer, *, retry: RetryPolicy = POLICY) -> ObjectStore:
    store = open_store(f"{gcs.uri}/t", issuer=issuer, credentials=issuer.issue(), retry=retry)
    assert isinstance(store, ObjectStore)
    return store


def count(issuer: FixedIssuer) -> int:
    return issuer.issued.total()


def read_until(store: ObjectStore, condition: Callable[[], bool]) -> None:
    """Read without a pause until something happens; every read must succeed."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        assert bytes(store.get("a")) == b"data"


def expire(store: ObjectStore) -> None:
    """Wait until the credentials have expired."""
    assert store._renewed is not None
    assert store._renewed.current is not None
    time.sleep(max(0.0, store._renewed.current.expires_s - time.monotonic()))


def wait_for_renewals() -> None:
    """Wait until the threads of renewals have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while any(thread.name == "penstock-credentials" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def session(server: StsServer, policy: str | None = None) -> dict[str, str]:
    options = server.options
    client = boto3.client(
        "sts", endpoint_url=server.endpoint, region_name=options["region"],
        aws_access_key_id=options["access_key_id"], aws_secret_access_key=options["secret_access_key"],
    )  # fmt: skip
    narrowed = {} if policy is None else {"Policy": policy}
    issued = client.assume_role(RoleArn=server.role_arn, RoleSessionName="test", **narrowed)["Credentials"]
    return {
        "aws_access_key_id": issued["AccessKeyId"],
        "aws_secret_access_key": issued["SecretAccessKey"],
        "aws_session_token": issued["SessionToken"],
        "aws_region": options["region"],
        "aws_endpoint": server.endpoint,
    }


def sas() -> dict[str, str]:
    options = new_location("az").options
    token = generate_container_sas(
        options["account_name"], "bucket", account_key=options["account_key"],
        permission=ContainerSasPermissions(read=True, write=True, list=True, delete=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    return {
        "azure_storage_account_name": options["account_name"],
        "azure_storage_sas_token": token,
        "azure_storage_endpoint": options["endpoint"],
    }


OTHER = "http://127.0.0.1:9"
ENVIRONMENT = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "user", "AWS_SESSION_TOKEN": "user",
        "AWS_SKIP_SIGNATURE": "true", "AWS_PROFILE": "missing", "AWS_ENDPOINT": OTHER, "AWS_ENDPOINT_URL": OTHER,
        "AWS_ENDPOINT_URL_S3": OTHER, "AWS_REGION": "user-1", "AWS_S3_EXPRESS": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_WEB_IDENTITY_TOKEN_FILE": "/missing",
    },
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "user", "AZURE_STORAGE_ACCOUNT_KEY": "dXNlcg==", "AZURE_STORAGE_TOKEN": "user",
        "AZURE_STORAGE_SAS_TOKEN": "sv=user", "AZURE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ENDPOINT": OTHER,
        "AZURE_STORAGE_USE_EMULATOR": "true", "AZURE_USE_AZURE_CLI": "true", "AZURE_CLIENT_ID": "user",
    },
    "gs": {
        "GOOGLE_BASE_URL": OTHER, "GOOGLE_BEARER_TOKEN": "user", "GOOGLE_SKIP_SIGNATURE": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": "/missing",
    },
}  # fmt: skip
USER_OPTIONS = {
    "s3": {"access_key_id": "user", "aws_secret_access_key": "user", "profile": "missing", "skip_signature": "true"},
    "az": {"account_key": "dXNlcg==", "sas_token": "sv=user"},
    "gs": {"bearer_token": "user", "skip_signature": "true"},
}


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_only_issued_credentials_are_used(
    scheme: str, gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer: FixedIssuer
    if scheme == "gs":
        uri, issuer = gcs.uri, TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    elif scheme == "az":
        uri, issuer = "az://bucket", FixedIssuer(tmp_path, sas(), LONG_S)
    else:
        uri, issuer = f"s3://{sts_server().bucket}", FixedIssuer(tmp_path, session(sts_server()), LONG_S)
    for name, value in ENVIRONMENT[scheme].items():
        monkeypatch.setenv(name, value)
    store = open_store(f"{uri}/{scheme}-table", issuer=issuer, options=USER_OPTIONS[scheme], retry=POLICY)
    assert count(issuer) == 0
    store.put("a", b"one")
    store.create("b", b"two")
    store.put_stream("c", [b"x" * 100])
    assert bytes(store.get("a")) == b"one"
    assert [info.key for info in store.list()] == ["a", "b", "c"]
    store.delete(["a", "b", "c"])
    assert count(issuer) == 1
    assert store.retries == 0


def test_options_take_precedence_over_settings_that_came_with_credentials(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, OTHER, LONG_S)
    store = open_store(f"{gcs.uri}/t", issuer=issuer, options={"base_url": gcs.endpoint}, retry=POLICY)
    assert bytes(store.get("a")) == b"data"


def test_an_account_that_is_not_known_is_not_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "user")
    issuer = FixedIssuer(tmp_path, {"sas_token": "sv=1&sig=2"})
    with pytest.raises(InvalidInputError, match="account_name"):
        open_store("az://bucket/t", issuer=issuer, credentials=issuer.issue())


def test_credentials_that_do_not_expire_are_not_renewed(gcs: FakeGcs, tmp_path: Path) -> None:
    options = TokenIssuer(tmp_path, gcs.endpoint, LONG_S).new_options()
    issuer = FixedIssuer(tmp_path, options, lifetime_s=None)
    store = open_store(f"{gcs.uri}/t", issuer=issuer, retry=POLICY)
    assert bytes(store.get("a")) == b"data"
    assert bytes(pickle.loads(pickle.dumps(store)).get("a")) == b"data"
    assert count(issuer) == 1


def test_a_folder_and_memory_need_no_credentials(tmp_path: Path) -> None:
    issuer = FixedIssuer(tmp_path, {})
    for uri in (str(tmp_path / "t"), "memory://"):
        store = open_store(uri, issuer=issuer)
        store.put("a", b"1")
        assert bytes(store.get("a")) == b"1"
    assert count(issuer) == 0


def test_credentials_that_lack_a_secret_are_an_error(tmp_path: Path) -> None:
    issuer = FixedIssuer(tmp_path, {"access_key_id": "key"})
    with pytest.raises(AccessDeniedError, match="lack secret_access_key"):
        open_store("s3://bucket/t", issuer=issuer, credentials=issuer.issue())


def test_twenty_renewals_disturb_no_request(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 1.5)
    store = open_gcs(gcs, issuer)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            read_until(store, lambda: count(issuer) > 21 or bool(failures))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_requests_do_not_call_into_python_for_credentials(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    provide = RenewedCredentials.__call__

    def counted(self: RenewedCredentials) -> dict[str, Any]:
        calls.append(1)
        return provide(self)

    monkeypatch.setattr(RenewedCredentials, "__call__", counted)
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    store = open_gcs(gcs, issuer)
    for _ in range(50):
        store.get("a")
    assert len(calls) == 1
    assert count(issuer) == 1
    assert list(store._clients) == [(POLICY.attempt_timeout_s, 0)]  # and all share the connections of one client


def test_an_idle_store_renews_nothing_and_leaves_no_thread(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 0.5)
    store = open_gcs(gcs, issuer)
    store.get("a")
    wait_for_renewals()
    expire(store)
    used = count(issuer)
    time.sleep(0.5)
    assert count(issuer) == used
    store.get("a")
    assert count(issuer) > used
    wait_for_renewals()


@pytest.mark.parametrize("state", ["away", "denies"])
def test_an_issuer_that_fails_for_a_while_disturbs_no_request(state: str, gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 8.0)
    store = open_gcs(gcs, issuer)
    issuer.begin(state)
    read_until(store, lambda: count(issuer) >= 3)  # attempts are repeated
    issuer.end(state)
    assert store._renewed is not None
    first = store._renewed.current
    read_until(store, lambda: store._renewed is not None and store._renewed.current is not first)


def test_one_renewal_runs_at_a_time(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 4.0)
    store = open_gcs(gcs, issuer)
    issuer.begin("hangs")
    read_until(store, lambda: count(issuer) == 2)
    for _ in range(20):
        store.get("a")
    assert count(issuer) == 2
    issuer.end("hangs")


@pytest.mark.parametrize("state", ["away", "hangs"])
@pytest.mark.parametrize("verb", ["get", "create"])
def test_expired_credentials_and_no_issuer_are_an_error_within_the_deadline(
    state: str, verb: str, gcs: FakeGcs, tmp_path: Path
) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 0.3)
    store = open_gcs(gcs, issuer, retry=SHORT)
    expire(store)
    issuer.begin(state)
    started = time.monotonic()
    with pytest.raises(StorageTimeoutError, match="check that the catalog server is running") as raised:
        store.get("a") if verb == "get" else store.create("b", b"")
    assert time.monotonic() - started < SHORT.deadline_s + 30
    assert "gs://bucket/t" in str(raised.value)
    issuer.end(state)


@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_request_waits_for_an_issuer_that_returns(verb: str, gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 0.5)
    store = open_gcs(gcs, issuer)
    expire(store)
    issuer.begin("away")
    issuer.lifetime_s = LONG_S
    timer = threading.Timer(1.0, issuer.end, ["away"])
    timer.start()
    if verb == "get":
        assert bytes(store.get("a")) == b"data"
    else:
        store.create("b", b"")
    timer.join()


def test_a_refusal_of_the_issuer_is_raised_when_the_credentials_expire(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 3.0)
    store = open_gcs(gcs, issuer)
    issuer.begin("denies")
    read_until(store, lambda: count(issuer) >= 2)
    expire(store)
    with pytest.raises(AccessDeniedError, match=r"gs://bucket/t cannot be renewed: the API key was revoked"):
        store.get("a")


def test_an_error_that_an_issuer_should_not_raise_reaches_the_caller(gcs: FakeGcs, tmp_path: Path) -> None:
    class Broken(TokenIssuer):
        def issue(self) -> Credentials:
            raise ZeroDivisionError("a bug")

    store = open_store(f"{gcs.uri}/t", issuer=Broken(tmp_path, gcs.endpoint, 1.0))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        store.get("a")


def test_refused_credentials_are_renewed_once(tmp_path: Path) -> None:
    server = sts_server()
    issuer = FixedIssuer(tmp_path, session(server), LONG_S)
    refused = Credentials(issuer.options | {"aws_session_token": "revoked"}, LONG_S)
    store = open_store(f"s3://{server.bucket}/refused", issuer=issuer, credentials=refused, retry=POLICY)
    store.put("a", b"data")
    assert count(issuer) == 1
    assert bytes(store.get("a")) == b"data"
    assert count(issuer) == 1
    assert store.retries == 1


def test_threads_that_are_refused_together_renew_once(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    refused = Credentials({"google_token": "x-0", "google_base_url": gcs.endpoint}, LONG_S)
    store = open_store(f"{gcs.uri}/t", issuer=issuer, credentials=refused, retry=POLICY)
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(bytes(store.get("a")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"data"] * 8
    assert count(issuer) == 1


def test_a_missing_right_does_not_renew_for_ever(tmp_path: Path) -> None:
    server = sts_server()
    read = f'{{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::{server.bucket}/*"}}'
    issuer = FixedIssuer(tmp_path, session(server, f'{{"Version": "2012-10-17", "Statement": [{read}]}}'), LONG_S)
    store = open_store(f"s3://{server.bucket}/denied", issuer=issuer, credentials=issuer.issue(), retry=POLICY)
    for _ in range(3):
        with pytest.raises(AccessDeniedError):
            store.put("a", b"data")
    assert count(issuer) == 2


def test_a_refusal_while_the_issuer_is_away_is_repeated(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    refused = Credentials({"google_token": "x-0", "google_base_url": gcs.endpoint}, LONG_S)
    store = open_store(f"{gcs.uri}/t", issuer=issuer, credentials=refused, retry=POLICY)
    issuer.begin("away")
    timer = threading.Timer(1.0, issuer.end, ["away"])
    timer.start()
    assert bytes(store.get("a")) == b"data"
    timer.join()


def test_a_long_upload_outlives_its_credentials(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 2.0)
    store = open_gcs(gcs, issuer)

    def chunks() -> Iterator[bytes]:
        yield b"x" * (17 << 20)
        for _ in range(2):
            expire(store)
            yield b"x" * (17 << 20)

    store.put_stream("b", chunks())
    assert store.head("b").size == 51 << 20
    assert count(issuer) >= 2


def test_a_pickle_carries_the_credentials(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    store = open_gcs(gcs, issuer)
    time.sleep(0.01)
    assert pickle.dumps(store) == pickle.dumps(store)  # the sidecar knows stores by their pickles
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(store))))
    assert bytes(copy.get("a")) == b"data"
    assert count(issuer) == 1
    assert 0 < copy._renewed.current.lifetime_s < LONG_S


@pytest.mark.parametrize("clock_s", [-2 * LONG_S, 2 * LONG_S])
def test_a_pickle_under_another_clock_is_usable(
    clock_s: float, gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    pickled = pickle.dumps(open_gcs(gcs, issuer))
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.storage._credentials.time.time", lambda: now + clock_s)
        copy = pickle.loads(pickled)
    assert copy._renewed.current.lifetime_s == (LONG_S if clock_s < 0 else 0)
    assert bytes(copy.get("a")) == b"data"
    assert count(issuer) == (1 if clock_s < 0 else 2)


def test_an_old_pickle_whose_credentials_were_refused_is_usable(gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 0.2)
    credentials = Credentials(issuer.issue().options, LONG_S)  # as if the clock were wrong
    pickled = pickle.dumps(open_store(f"{gcs.uri}/t", issuer=issuer, credentials=credentials, retry=POLICY))
    time.sleep(0.3)
    issuer.lifetime_s = LONG_S
    copy = pickle.loads(pickled)
    copy._renewed._issuer.lifetime_s = LONG_S
    assert bytes(copy.get("a")) == b"data"
    assert count(issuer) == 2


FORK = """
import os, sys
from pathlib import Path
from penstock.storage import open_store
from tests.storage.issuers import TokenIssuer

folder, endpoint, io_before_fork = sys.argv[1:]
issuer = TokenIssuer(Path(folder), endpoint, 1.5)
store = open_store("gs://bucket/t", issuer=issuer, credentials=issuer.issue())
if io_before_fork:
    issuer.begin("hangs")
    while issuer.issued.total() < 2:
        store.get("a")
with store._renewed._lock:  # the worst moment
    parent, child = os.getpid(), os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if io_before_fork:
    issuer.end("hangs")
while sum(count for pid, count in issuer.issued.items() if pid != parent) < 5:
    assert store.get("a") == b"data"
assert (os.getpid() in issuer.issued) is not bool(io_before_fork)  # else the sidecar renews
"""


@pytest.mark.parametrize("io_before_fork", ["", "yes"])
def test_a_forked_process_renews_for_itself(io_before_fork: str, gcs: FakeGcs, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path), gcs.endpoint, io_before_fork]
    subprocess.run(command, check=True, timeout=PATIENCE_S)


def test_secrets_are_neither_in_representations_nor_in_errors(gcs: FakeGcs, tmp_path: Path) -> None:
    secret = "not-to-be-shown"
    credentials = Credentials({"google_token": secret, "google_base_url": gcs.endpoint}, LONG_S)
    issuer = TokenIssuer(tmp_path, gcs.endpoint, LONG_S)
    store = open_store(f"{gcs.uri}/t", issuer=issuer, credentials=credentials, retry=SHORT)
    assert isinstance(store, ObjectStore)
    assert store._renewed is not None
    issuer.begin("away")
    with pytest.raises(StorageError) as raised:
        store.get("a")
    texts = [repr(credentials), repr(store), repr(store._renewed), repr(store._renewed.current), str(raised.value)]
    assert secret not in " ".join(texts)
    assert "google_token" in repr(credentials)
