"""Fault injection, counters and the fake of Google Cloud Storage."""

import pickle
import time

import pytest

from penstock import storage
from penstock.errors import AlreadyExistsError, SourceChangedError, StorageError, StorageTimeoutError
from penstock.storage import Store, open_store
from penstock.testing import CountingStore, FakeGcs, Fault, FaultyStore, StoreTests
from penstock.types import ByteRange


class TestFaultyStoreWithoutFaults(StoreTests):
    def new_store(self) -> Store:
        return FaultyStore(open_store("memory://"))


class TestCountingStore(StoreTests):
    def new_store(self) -> Store:
        return CountingStore(open_store("memory://"))


def test_fails_before_or_after_the_call() -> None:
    before = Fault("fail_before", "put", "a*", skip=1, times=2, error=StorageTimeoutError)
    after = Fault("fail_after", "create", "log/*")
    store = FaultyStore(open_store("memory://"), before, after)
    store.put("a1", b"")
    store.put("b1", b"")
    for key in ("a2", "a3"):
        with pytest.raises(StorageTimeoutError, match=f"put {key}"):
            store.put(key, b"")
    store.put("a4", b"")
    with pytest.raises(StorageError, match="fail_after of create log/1"):
        store.create("log/1", b"mine")
    with pytest.raises(AlreadyExistsError):
        store.create("log/1", b"again")
    assert bytes(store.get("log/1")) == b"mine"
    assert [info.key for info in store.list()] == ["a1", "a4", "b1", "log/1"]
    assert (store.fired[before], store.fired[after]) == (2, 1)


def test_overwrites_and_delays() -> None:
    store = FaultyStore(open_store("memory://"), Fault("overwrite", "create"), Fault("delay", "get", delay_s=0.05))
    store.put("k", b"first")
    store.create("k", b"second")
    started = time.monotonic()
    assert bytes(store.get("k")) == b"second"
    assert time.monotonic() - started >= 0.05
    with pytest.raises(AlreadyExistsError):
        store.create("k", b"third")


def test_counts_requests_and_bytes() -> None:
    store = CountingStore(open_store("memory://"))
    store.put("k", b"1234")
    store.put_stream("s", [b"12", b"345"])
    store.get("k")
    store.get("s")
    list(store.list())
    assert store.requests == {"put": 1, "put_stream": 1, "get": 2, "list": 1}
    assert +store.bytes == {"put": 4, "put_stream": 5, "get": 9}
    assert pickle.loads(pickle.dumps(store)).requests == store.requests


def test_rate_limited_updates_are_retried() -> None:
    with FakeGcs(update_interval_s=0.3) as server:
        store = open_store(server.uri, options=server.options)
        started = time.monotonic()
        store.put("k", b"first")
        store.put("k", b"second")
        assert time.monotonic() - started >= 0.3
        assert bytes(store.get("k")) == b"second"


def test_a_store_that_ignores_if_match_returns_no_changed_object() -> None:
    with FakeGcs(honours_conditions=False) as server:
        store = open_store(server.uri, options=server.options)
        store.put("k", b"old data")
        [listed] = store.list()
        assert bytes(store.get("k", byte_range=ByteRange(0, 4), etag=listed.etag)) == b"old "
        store.put("k", b"new_____")
        for byte_range in (None, ByteRange(4, 8)):
            with pytest.raises(SourceChangedError, match="k no longer has etag"):
                store.get("k", byte_range=byte_range, etag=listed.etag)


def test_all_is_sorted_and_complete() -> None:
    assert storage.__all__ == sorted(storage.__all__)
    assert all(hasattr(storage, name) for name in storage.__all__)
