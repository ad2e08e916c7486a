"""Credentials are issued once for many clients, and reported with what is left of their lifetime."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import pytest

from penstock.catalog import Access
from penstock.catalog.vending import CachedVendor
from penstock.errors import StorageError
from penstock.storage import Credentials


class CountingVendor:
    """Issues numbered credentials, and waits for `open` before it answers."""

    storage, narrow, server_options = "memory://lake", True, {"secret": "server"}

    def __init__(self, lifetime_s: float | None = 100.0) -> None:
        self.lifetime_s = lifetime_s
        self.issued: list[tuple[str, Access]] = []
        self.removed: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.fails = False

    def new_location(self) -> str:
        return "memory://lake/new"

    def check_location(self, location: str) -> None:
        self.new_location()

    def vend(self, location: str, access: Access) -> Credentials:
        self.issued.append((location, access))
        self.asked.set()
        assert self.open.wait(60)
        if self.fails:
            raise StorageError("the token service is away")
        return Credentials({"number": str(len(self.issued))}, self.lifetime_s)

    def remove(self, location: str) -> None:
        self.removed.append(location)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_credentials_are_issued_again_when_half_of_their_lifetime_is_over() -> None:
    vendor, clock = CountingVendor(), Clock()
    cached = CachedVendor(vendor, clock=clock)
    assert cached.vend("a", "read") == Credentials({"number": "1"}, 100.0)
    clock.now_s += 49
    assert cached.vend("a", "read") == Credentials({"number": "1"}, 51.0)
    clock.now_s += 1
    assert cached.vend("a", "read") == Credentials({"number": "2"}, 100.0)


def test_each_table_and_access_has_its_own_credentials() -> None:
    vendor = CountingVendor()
    cached = CachedVendor(vendor)
    pairs: list[tuple[str, Access]] = [("a", "read"), ("a", "write"), ("b", "read")]
    numbers = [cached.vend(*pair).options["number"] for pair in pairs * 2]
    assert numbers == ["1", "2", "3"] * 2
    assert vendor.issued == pairs


def test_credentials_that_do_not_expire_are_issued_once() -> None:
    vendor, clock = CountingVendor(None), Clock()
    cached = CachedVendor(vendor, clock=clock)
    for _ in range(3):
        assert cached.vend("a", "read") == Credentials({"number": "1"}, None)
        clock.now_s += 1e9


def test_threads_that_want_the_same_credentials_wait_for_one_request() -> None:
    vendor = CountingVendor()
    vendor.open.clear()
    cached = CachedVendor(vendor)
    with ThreadPoolExecutor(16) as threads:
        same = [threads.submit(cached.vend, "a", "read") for _ in range(15)]
        assert vendor.asked.wait(60)
        other = threads.submit(cached.vend, "b", "read")  # is not held up by the request for a
        vendor.open.set()
        assert {future.result(60).options["number"] for future in same} == {same[0].result().options["number"]}
        assert other.result(60)
    assert sorted(vendor.issued) == [("a", "read"), ("b", "read")]


def test_a_failure_reaches_those_who_wait_and_is_not_remembered() -> None:
    vendor = CountingVendor()
    vendor.fails = True
    vendor.open.clear()
    cached = CachedVendor(vendor)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(cached.vend, "a", "read") for _ in range(4)]
        assert vendor.asked.wait(60)
        vendor.open.set()
        for future in waiting:
            with pytest.raises(StorageError, match="away"):
                future.result(60)
    vendor.fails = False
    assert cached.vend("a", "read").options["number"] == str(len(vendor.issued))


def test_older_credentials_serve_while_the_token_service_fails() -> None:
    vendor, clock = CountingVendor(), Clock()
    cached = CachedVendor(vendor, clock=clock)
    cached.vend("a", "read")
    vendor.fails = True
    clock.now_s += 89
    assert cached.vend("a", "read") == Credentials({"number": "1"}, 11.0)
    clock.now_s += 1
    with pytest.raises(StorageError, match="away"):
        cached.vend("a", "read")


def test_older_credentials_serve_while_a_request_for_new_ones_hangs() -> None:
    vendor, clock = CountingVendor(), Clock()
    cached = CachedVendor(vendor, clock=clock)
    cached.vend("a", "read")
    vendor.open.clear()
    vendor.asked.clear()
    clock.now_s += 60
    with ThreadPoolExecutor(1) as threads:
        renewed = threads.submit(cached.vend, "a", "read")
        assert vendor.asked.wait(60)
        assert cached.vend("a", "read") == Credentials({"number": "1"}, 40.0)
        vendor.open.set()
        assert renewed.result(60).options["number"] == "2"


def test_a_token_service_that_hangs_occupies_few_threads() -> None:
    vendor = CountingVendor()
    cached = CachedVendor(vendor)
    cached.vend("old", "read")
    vendor.open.clear()
    with ThreadPoolExecutor(64) as threads:
        pairs = [threads.submit(cached.vend, "same" if number % 2 else str(number), "read") for number in range(64)]
        refused = list(islice(as_completed(pairs, 60), 64 - 8 - 16))
        assert all(isinstance(future.exception(), StorageError) for future in refused)
        assert cached.vend("old", "read")
        assert len(vendor.issued) <= 1 + 8  # later ones that have not begun yet may be issued
        vendor.open.set()
    assert cached.vend("new", "read")


def test_the_tables_used_last_remain_in_memory() -> None:
    vendor = CountingVendor()
    cached = CachedVendor(vendor, max_entries=2)
    for location in ("a", "b", "a", "c", "a"):
        cached.vend(location, "read")
    assert [location for location, _ in vendor.issued] == ["a", "b", "c"]
    cached.vend("b", "read")
    assert [location for location, _ in vendor.issued] == ["a", "b", "c", "b"]


def test_credentials_of_a_removed_table_are_forgotten() -> None:
    vendor = CountingVendor()
    cached = CachedVendor(vendor)
    cached.vend("a", "read")
    cached.remove("a")
    cached.vend("a", "read")
    assert vendor.removed == ["a"]
    assert len(vendor.issued) == 2


def test_the_rest_is_that_of_the_vendor() -> None:
    vendor = CountingVendor()
    cached = CachedVendor(vendor)
    assert (cached.storage, cached.narrow, cached.server_options) == (vendor.storage, True, {"secret": "server"})
    assert cached.new_location() == "memory://lake/new"
