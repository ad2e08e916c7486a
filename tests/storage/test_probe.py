"""The probe detects stores that violate the contract."""

import pytest

from penstock.errors import StorageError
from penstock.storage import open_store, probe
from penstock.testing import FakeGcs, Fault, FaultyStore


def test_server_that_ignores_conditional_puts_is_detected() -> None:
    with FakeGcs(honours_conditions=False) as server:
        store = open_store(server.uri, options=server.options)
        found = probe(store)
        assert not found.create_only
        assert "racing creates reported success: only one writer" in found.detail
        assert list(store.list()) == []


def test_rate_limit_on_updates_is_not_a_violation() -> None:
    with FakeGcs(update_interval_s=0.3) as server:
        assert probe(open_store(server.uri, options=server.options), rounds=1).create_only


def test_store_that_overwrites_later_is_detected() -> None:
    store = FaultyStore(open_store("memory://"), Fault("overwrite", "create", skip=8))
    found = probe(store, racers=8, rounds=1)
    assert not found.create_only
    assert "created again" in found.detail


def test_lost_response_is_not_a_violation() -> None:
    store = FaultyStore(open_store("memory://"), Fault("fail_after", "create"))
    assert probe(store, racers=4, rounds=1).create_only


def test_unreachable_store_raises() -> None:
    store = FaultyStore(open_store("memory://"), Fault("fail_before", "create", times=100))
    with pytest.raises(StorageError, match="injected"):
        probe(store)
