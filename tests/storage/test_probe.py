"""The probe finds out which stores lie."""

import pytest

from penstock.errors import StorageError
from penstock.storage import open_store, probe
from penstock.testing import FakeGcs, Fault, FaultyStore


def test_a_server_that_ignores_conditions_is_found_out() -> None:
    with FakeGcs(honours_conditions=False) as server:
        store = open_store(server.uri, options=server.options)
        found = probe(store)
        assert not found.create_only
        assert "racing creators were told that they won: only one writer" in found.detail
        assert list(store.list()) == []


def test_a_limit_on_updates_is_no_lie() -> None:
    with FakeGcs(update_interval_s=0.3) as server:
        assert probe(open_store(server.uri, options=server.options), rounds=1).create_only


def test_a_store_that_overwrites_later_is_found_out() -> None:
    store = FaultyStore(open_store("memory://"), Fault("lie", "create", skip=8))
    found = probe(store, racers=8, rounds=1)
    assert not found.create_only
    assert "created again" in found.detail


def test_a_lost_answer_is_no_lie() -> None:
    store = FaultyStore(open_store("memory://"), Fault("fail_after", "create"))
    assert probe(store, racers=4, rounds=1).create_only


def test_a_store_that_is_away_is_not_judged() -> None:
    store = FaultyStore(open_store("memory://"), Fault("fail_before", "create", times=100))
    with pytest.raises(StorageError, match="injected"):
        probe(store)
