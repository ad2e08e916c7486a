"""Object stores on a network that fails."""

import pickle
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

import penstock
from penstock import Link
from penstock.errors import AccessDeniedError, NotFoundError, SourceChangedError, StorageError, StorageTimeoutError
from penstock.storage import RetryPolicy, Store, open_store
from penstock.types import ByteRange
from tests.servers import moto_port, new_location, s3_options
from tests.storage.proxy import Action, FaultProxy

POLICY = RetryPolicy(deadline_s=240, attempt_timeout_s=60, initial_backoff_s=0.01, max_backoff_s=0.05)
HASTY = RetryPolicy(deadline_s=1, attempt_timeout_s=0.4, initial_backoff_s=0.01, max_backoff_s=0.05)
BODY = bytes(range(256)) * 400


def faulty(proxy: FaultProxy, *, policy: RetryPolicy = POLICY) -> tuple[Store, Store]:
    """Open the same new location through the proxy and without it."""
    location = new_location("s3")
    return open_store(location.uri, options=s3_options(proxy.endpoint), retry=policy), location.open()


@pytest.mark.parametrize("script", [["reset", "pass"], ["503", "503", "pass"], ["reset", "503", "swallow", "pass"]])
def test_reads_are_retried(script: Sequence[Action]) -> None:
    with FaultProxy(moto_port(), script) as proxy:
        store, direct = faulty(proxy)
        direct.put("k", BODY)
        assert store.get("k") == BODY
        assert proxy.actions == list(script)
        assert (store.retries, direct.retries) == (len(script) - 1, 0)


@pytest.mark.parametrize("script", [["503", "503", "pass"], ["swallow", "pass"]])
def test_put_head_list_and_delete_are_retried(script: Sequence[Action]) -> None:
    for verb in ("put", "head", "list", "delete"):
        with FaultProxy(moto_port(), script) as proxy:
            store, direct = faulty(proxy)
            direct.put("k", BODY)
            if verb == "put":
                store.put("k", b"new")
                assert bytes(direct.get("k")) == b"new"
            elif verb == "head":
                assert store.head("k").size == len(BODY)
            elif verb == "list":
                assert [info.key for info in store.list()] == ["k"]
            else:
                store.delete(["k"])
                assert list(direct.list()) == []
            assert proxy.actions == list(script)


def test_listing_resumes_after_a_failure() -> None:
    keys = [f"{index:03}" for index in range(300)]  # their listing is longer than the proxy passes
    with FaultProxy(moto_port(), ["reset", "pass"]) as proxy:
        store, direct = faulty(proxy)
        for key in keys:
            direct.put(key, b"")
        assert [info.key for info in store.list()] == keys


def test_parts_of_a_multipart_upload_are_retried() -> None:
    with FaultProxy(moto_port(), ["pass", "503", "pass"]) as proxy:
        store, direct = faulty(proxy)
        store.put_stream("k", [bytes(9 << 20)] * 4)
        assert direct.head("k").size == 36 << 20


def test_create_is_sent_once() -> None:
    with FaultProxy(moto_port(), ["503", "swallow", "pass"]) as proxy:
        store, direct = faulty(proxy)
        with pytest.raises(StorageError, match="cannot create"):
            store.create("k", b"first")
        assert list(direct.list()) == []
        with pytest.raises(StorageError, match="cannot create"):
            store.create("k", b"second")
        assert bytes(direct.get("k")) == b"second"
        assert proxy.actions == ["503", "swallow"]


def test_access_denied_is_retried_once() -> None:
    for write in (Store.put, Store.create):
        with FaultProxy(moto_port(), ["403", "pass"]) as proxy:
            store, direct = faulty(proxy)
            getattr(store, write.__name__)("k", BODY)
            assert direct.get("k") == BODY
    with FaultProxy(moto_port(), ["403"]) as proxy:
        store, _ = faulty(proxy)
        with pytest.raises(AccessDeniedError, match=r"cannot read s3://bucket/.*/k.*check the credentials"):
            store.get("k")
        assert len(proxy.actions) == 2


@pytest.mark.parametrize("verb", ["get", "head", "list", "put", "delete", "create", "put_stream"])
def test_hanging_server_is_a_timeout(verb: str) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        store, _ = faulty(proxy, policy=HASTY)
        started = time.monotonic()
        with pytest.raises(StorageTimeoutError):
            _call(store, verb)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("verb", ["get", "head", "list", "put", "delete", "create", "put_stream"])
def test_unreachable_server_is_a_storage_error(verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    store = open_store("s3://bucket/t", options=s3_options(endpoint), retry=HASTY)
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"s3://bucket/t.*check that the store can be reached"):
        _call(store, verb)
    assert time.monotonic() - started < 60


def _seconds(error: StorageError) -> float:
    [seconds] = re.findall(r"gave up after \d+ attempts? in ([\d.]+) s", str(error))
    return float(seconds)


def test_an_address_that_never_worked_fails_long_before_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert RetryPolicy().connect_deadline_s <= 10
    policy = RetryPolicy(deadline_s=240, connect_deadline_s=0.3)
    store = open_store("s3://bucket/t", options=s3_options(endpoint), retry=policy)
    with pytest.raises(StorageTimeoutError, match=rf"s3://bucket/t/.*{endpoint}.*Connection refused") as raised:
        penstock.load(store)
    assert _seconds(raised.value) < 60
    wrong = open_store("s3://bucket/t", options=s3_options("http://no-such-host.invalid"), retry=policy)
    with pytest.raises(StorageTimeoutError, match=r"no-such-host\.invalid") as raised:
        penstock.load(wrong)
    assert _seconds(raised.value) < 60


@pytest.mark.parametrize("copied", [False, True])
def test_an_address_that_worked_once_is_tried_until_the_deadline(copied: bool) -> None:
    policy = RetryPolicy(deadline_s=2, connect_deadline_s=0.1, initial_backoff_s=0.01, max_backoff_s=0.05)
    with FaultProxy(moto_port(), ["pass"]) as proxy:
        store, _ = faulty(proxy, policy=policy)
        with pytest.raises(NotFoundError):
            store.get("k")
        if copied:
            store = pickle.loads(pickle.dumps(store))
        proxy.die("refuse")
        with pytest.raises(StorageTimeoutError) as raised:
            store.get("k")
    assert _seconds(raised.value) > 1.5


@pytest.mark.parametrize("verb", ["get", "list", "put", "delete", "create", "put_stream"])
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_missing_bucket_is_not_a_missing_object(kind: str, verb: str) -> None:
    location = new_location(kind)
    store = open_store(location.uri.replace("bucket", "nowhere"), options=location.options, retry=POLICY)
    with pytest.raises(StorageError, match="bucket or container does not exist"):
        _call(store, verb)


def test_wrong_credentials_are_access_denied() -> None:
    location = new_location("az")
    wrong = location.options | {"account_key": "d3Jvbmc="}
    with pytest.raises(AccessDeniedError, match="cannot read az://bucket/"):
        open_store(location.uri, options=wrong, retry=POLICY).get("k")
    with pytest.raises(NotFoundError):
        location.open().get("k")


@pytest.fixture
def recorded() -> Iterator[tuple[str, list[bytes]]]:
    """The endpoint of a server that answers every request with one byte, and the requests."""
    requests: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(65536))
            headers = 'Content-Length: 1\r\nETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT'
            headers += "\r\nContent-Range: bytes 0-0/1"
            self.request.sendall(f"HTTP/1.1 206 Partial Content\r\n{headers}\r\nConnection: close\r\n\r\nx".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("etag", ['"x"\r\nX-Other: 1\r\n\r\nGET /other HTTP/1.1', '"x\n"', "\x00", "a b", "", "\u00e9"])
def test_no_header_is_built_from_the_text_of_a_table(recorded: tuple[str, list[bytes]], etag: str) -> None:
    endpoint, requests = recorded
    options = s3_options(endpoint)
    with pytest.raises(SourceChangedError, match=r"^[^\x00-\x1f]*no longer has etag[^\x00-\x1f]*$"):
        open_store("s3://bucket", options=options, retry=HASTY).get("k", byte_range=ByteRange(0, 1), etag=etag)
    ds = penstock.create("memory://", {"link": penstock.Linked(penstock.Bytes())}, links={"s3://bucket": options})
    ds.append({"link": [Link("s3://bucket/k", offset=0, length=1, etag=each) for each in ('"x"', etag or "\n")]})
    assert bytes(ds["link"][0]) == b"x"
    sent = list(requests)
    with pytest.raises(SourceChangedError):
        ds["link"][1]
    assert requests == sent
    assert [request.lower().count(b"\r\nif-match:") for request in sent] == [1]


def _call(store: Store, verb: str) -> None:
    if verb in ("put", "create"):
        getattr(store, verb)("k", b"x")
    elif verb == "put_stream":
        store.put_stream("k", [b"x"])
    elif verb == "delete":
        store.delete(["k"])
    elif verb == "list":
        list(store.list())
    else:
        getattr(store, verb)("k")


@pytest.mark.parametrize("exits", [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_interpreter_exits_cleanly_while_objects_are_prefetched(exits: int) -> None:
    location = new_location("s3")
    store = location.open()
    for index in range(40):
        store.put(f"{index:02}", bytes(10_000))
    script = f"""
from penstock.storage import Prefetch, open_store
store = open_store({location.uri!r}, options={location.options!r})
objects = store.get_many(list(store.list()), Prefetch(16, 1 << 20))
next(objects)
"""
    for _ in range(exits):
        child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (child.returncode, child.stderr) == (0, "")
