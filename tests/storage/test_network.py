"""What object stores make of a network that fails."""

import socket
import time
from collections.abc import Sequence

import pytest

from penstock.errors import AccessDenied, NotFoundError, StorageError, StorageTimeout
from penstock.storage import RetryPolicy, Store, open_store
from tests.servers import moto_port, new_place, s3_options
from tests.storage.proxy import Action, FaultProxy

POLICY = RetryPolicy(deadline_s=20, attempt_timeout_s=5, initial_backoff_s=0.01, max_backoff_s=0.05)
HASTY = RetryPolicy(deadline_s=1, attempt_timeout_s=0.4, initial_backoff_s=0.01, max_backoff_s=0.05)
BODY = bytes(range(256)) * 400


def spoiled(proxy: FaultProxy, *, policy: RetryPolicy = POLICY) -> tuple[Store, Store]:
    """Return the same fresh place through the proxy and beside it."""
    place = new_place("s3")
    return open_store(place.uri, options=s3_options(proxy.endpoint), retry=policy), place.open()


@pytest.mark.parametrize("script", [["reset", "pass"], ["503", "503", "pass"], ["reset", "503", "swallow", "pass"]])
def test_reads_heal(script: Sequence[Action]) -> None:
    with FaultProxy(moto_port(), script) as proxy:
        store, direct = spoiled(proxy)
        direct.put("k", BODY)
        assert store.get("k") == BODY
        assert proxy.taken == list(script)
        assert (store.retries, direct.retries) == (len(script) - 1, 0)


@pytest.mark.parametrize("script", [["503", "503", "pass"], ["swallow", "pass"]])
def test_writes_descriptions_listings_and_deletions_heal(script: Sequence[Action]) -> None:
    for verb in ("put", "head", "list", "delete"):
        with FaultProxy(moto_port(), script) as proxy:
            store, direct = spoiled(proxy)
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
            assert proxy.taken == list(script)


def test_a_listing_goes_on_after_a_break() -> None:
    keys = [f"{number:03}" for number in range(300)]  # their listing is longer than the proxy lets through
    with FaultProxy(moto_port(), ["reset", "pass"]) as proxy:
        store, direct = spoiled(proxy)
        for key in keys:
            direct.put(key, b"")
        assert [info.key for info in store.list()] == keys


def test_parts_of_a_stream_heal() -> None:
    with FaultProxy(moto_port(), ["pass", "503", "pass"]) as proxy:
        store, direct = spoiled(proxy)
        store.put_stream("k", [bytes(9 << 20)] * 4)
        assert direct.head("k").size == 36 << 20


def test_create_is_sent_once() -> None:
    with FaultProxy(moto_port(), ["503", "swallow", "pass"]) as proxy:
        store, direct = spoiled(proxy)
        with pytest.raises(StorageError, match="cannot create"):
            store.create("k", b"first")
        assert list(direct.list()) == []
        with pytest.raises(StorageError, match="cannot create"):
            store.create("k", b"second")
        assert bytes(direct.get("k")) == b"second"
        assert proxy.taken == ["503", "swallow"]


def test_a_refusal_is_tried_once_more() -> None:
    for write in (Store.put, Store.create):
        with FaultProxy(moto_port(), ["403", "pass"]) as proxy:
            store, direct = spoiled(proxy)
            getattr(store, write.__name__)("k", BODY)
            assert direct.get("k") == BODY
    with FaultProxy(moto_port(), ["403"]) as proxy:
        store, _ = spoiled(proxy)
        with pytest.raises(AccessDenied, match=r"cannot read s3://bucket/.*/k.*check the credentials"):
            store.get("k")
        assert len(proxy.taken) == 2


@pytest.mark.parametrize("verb", ["get", "head", "list", "put", "delete", "create", "put_stream"])
def test_a_server_that_hangs_is_a_timeout(verb: str) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        store, _ = spoiled(proxy, policy=HASTY)
        started = time.monotonic()
        with pytest.raises(StorageTimeout):
            _call(store, verb)
        assert time.monotonic() - started < (HASTY.deadline_s + 5 if verb != "put_stream" else 10)


@pytest.mark.parametrize("verb", ["get", "head", "list", "put", "delete", "create", "put_stream"])
def test_a_server_that_is_away_is_a_storage_error(verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    store = open_store("s3://bucket/t", options=s3_options(endpoint), retry=HASTY)
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"s3://bucket/t.*check that the store can be reached"):
        _call(store, verb)
    assert time.monotonic() - started < (HASTY.deadline_s + 5 if verb != "put_stream" else 10)


@pytest.mark.parametrize("verb", ["get", "list", "put", "delete", "create", "put_stream"])
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_missing_bucket_is_not_a_missing_object(kind: str, verb: str) -> None:
    place = new_place(kind)
    store = open_store(place.uri.replace("bucket", "nowhere"), options=place.options, retry=HASTY)
    with pytest.raises(StorageError, match="bucket or container does not exist"):
        _call(store, verb)


def test_wrong_keys_are_access_denied() -> None:
    place = new_place("az")
    wrong = place.options | {"account_key": "d3Jvbmc="}
    with pytest.raises(AccessDenied, match="cannot read az://bucket/"):
        open_store(place.uri, options=wrong, retry=HASTY).get("k")
    with pytest.raises(NotFoundError):
        place.open().get("k")


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
