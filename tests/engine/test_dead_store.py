"""A store that stops answering while it is read."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest

import penstock
from penstock import Dataset, RetryPolicy
from penstock.errors import PenstockWarning, StorageError, StorageTimeoutError
from penstock.storage import ObjectStore, Store, open_store
from penstock.testing import CountingStore
from tests.engine.reading import MIXED, large
from tests.engine.watch import soon
from tests.servers import StoreLocation, moto_port, new_location, s3_options
from tests.storage.proxy import FaultProxy

POLICY = RetryPolicy(deadline_s=3, attempt_timeout_s=2, initial_backoff_s=0.05, max_backoff_s=0.2)
HANG_S = 60.0


@pytest.fixture(scope="module")
def place() -> StoreLocation:
    location = new_location("s3")
    large(location.open(), *[60] * 10)
    return location


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(moto_port(), ["pass"]) as running:
        yield running


def through(proxy: FaultProxy, place: StoreLocation) -> Dataset:
    return penstock.load(open_store(place.uri, options=s3_options(proxy.endpoint), retry=POLICY))


@pytest.mark.parametrize("memory_budget", [1 << 20, None])
@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_a_store_that_dies_in_an_epoch_is_an_error_within_one_deadline(
    place: StoreLocation, proxy: FaultProxy, how: Literal["refuse", "hang"], memory_budget: int | None
) -> None:
    with through(proxy, place).pytorch(batch_size=8, memory_budget=memory_budget, **MIXED) as loader:
        batches = iter(loader)
        next(batches)
        proxy.die(how)
        died = time.monotonic()
        with pytest.raises(StorageTimeoutError) as raised:
            list(batches)
        assert time.monotonic() - died < HANG_S
    assert place.uri in str(raised.value)
    assert proxy.endpoint in str(raised.value)
    [seconds] = re.findall(r"gave up after \d+ attempts? in ([\d.]+) s", str(raised.value))
    assert float(seconds) <= POLICY.deadline_s + 1


@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_load_of_a_dead_store_is_an_error_after_one_call(
    place: StoreLocation, proxy: FaultProxy, how: Literal["refuse", "hang"]
) -> None:
    proxy.die(how)
    store = open_store(place.uri, options=s3_options(proxy.endpoint), retry=POLICY)
    with pytest.raises(StorageTimeoutError, match=rf"{place.uri}.*{proxy.endpoint}") as raised:
        penstock.load(store)
    [attempts] = re.findall(r"gave up after (\d+) attempts? in", str(raised.value))
    assert int(attempts) == store.retries + 1


class _Stalling(CountingStore):
    """A store that answers no read of data while `answers` is cleared."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.answers = threading.Event()
        self.answers.set()

    def get(self, key: str, **options: Any) -> memoryview:
        if key.startswith("data/"):
            assert self.answers.wait(240)
        return super().get(key, **options)


def test_progress_and_statistics_say_that_the_store_does_not_answer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a display on a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    store = _Stalling(open_store("memory://"))
    ds, numbers = large(store, 60)
    with ds.pytorch(batch_size=8, progress="line", **MIXED) as loader:
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.extend(batch["n"] for batch in loader))
        store.answers.clear()
        reading.start()
        assert soon(lambda: "the store does not answer" in capfd.readouterr().err)
        assert "the store does not answer" in str(loader.stats())
        store.answers.set()
        reading.join(240)
        assert sorted(n for part in found for n in part.tolist()) == numbers.tolist()
        assert soon(lambda: loader.stats().unanswered_s == 0)


def test_a_store_that_does_not_answer_for_long_is_warned_of_once(place: StoreLocation) -> None:
    store = open_store(place.uri, options=place.options)
    assert isinstance(store, ObjectStore)
    store._on_retry(1.0, StorageError("refused"))
    with pytest.warns(PenstockWarning, match=rf"{place.uri} does not answer for 11 s.*up to 120 s: refused"):
        store._on_retry(11.0, StorageError("refused"))
    store._on_retry(12.0, StorageError("refused"))
    assert store.retries == 3
