"""A version stays readable for as long as it is read, whatever vacuum does meanwhile."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import penstock
from penstock import Dataset, Tensor
from penstock.errors import PenstockWarning, SnapshotExpiredError, StorageError
from penstock.storage import ObjectInfo, open_store
from penstock.table import VersionLease
from penstock.testing import CountingStore
from penstock.types import Buffer
from tests.engine.watch import soon, threads_end

ROWS = 64
DAY_S = 86_400.0


class Clock(CountingStore):
    """A store with a clock of its own, which tests advance; leases wait by it."""

    def __init__(self) -> None:
        super().__init__(open_store("memory://"))
        self.now_s = 1e9
        self.failing, self.attempts = False, 0
        self.written_s: dict[str, float] = {}
        self._tick = threading.Condition()

    def put(self, key: str, data: Buffer) -> None:
        if self.failing and key.startswith("leases/"):
            self.attempts += 1
            raise StorageError("injected by a test")
        super().put(key, data)
        self.written_s[key] = self.now_s

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        self.written_s[key] = self.now_s

    def head(self, key: str) -> ObjectInfo:
        return super().head(key)._replace(modified_s=self.written_s.get(key, 1e9))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return (item._replace(modified_s=self.written_s.get(item.key, 1e9)) for item in super().list(prefix))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """As `Event.wait`, by this clock."""
        with self._tick:
            end_s = self.now_s + seconds
            while self.now_s < end_s and not event.is_set():
                self._tick.wait(0.01)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        with self._tick:
            self.now_s += seconds
            self._tick.notify_all()

    def lease_ages_s(self) -> Sequence[float]:
        return [self.now_s - item.modified_s for item in self.list("leases/")]


def old_version(store: Clock) -> Dataset:
    """A version that is not the newest, and that nothing but a lease protects."""
    ds = penstock.create(store, {"n": int, "x": Tensor("float32", (4,))})
    ds.append({"n": np.arange(ROWS), "x": np.zeros((ROWS, 4), np.float32)})
    ds.commit()
    old = penstock.load(store)
    ds.update(positions=slice(None), data={"x": np.ones((ROWS, 4), np.float32)})
    ds.commit()
    return old


def leased(source: Any, ds: Dataset, store: Clock) -> Any:
    """A loader, or rows, whose lease waits by the store's clock."""
    holder = source._rows if hasattr(source, "_rows") else source
    holder._lease.release()
    holder._lease = VersionLease([ds._reader], wait=store.wait)
    holder._lease.acquire(block=True)
    return source


def numbers(batches: Any) -> list[int]:
    return [int(n) for batch in batches for n in batch["n"]]


@pytest.mark.parametrize("kind", ["numpy", "pytorch", "view", "rows", "rows in workers"])
def test_a_run_of_thirty_days_survives_vacuums(kind: str) -> None:
    store = Clock()
    ds = old_version(store)
    if kind.startswith("rows"):
        source: Any = DataLoader(
            leased(ds.pytorch(), ds, store), batch_size=8, num_workers=2 * kind.endswith("workers")
        )
    elif kind == "view":
        source = leased(ds[::2].numpy(batch_size=8), ds, store)
    else:
        source = leased(getattr(ds, kind)(batch_size=8), ds, store)
    expected = list(range(0, ROWS, 2 if kind == "view" else 1))
    for _ in range(3):
        for _ in range(10):
            for _ in range(4):
                store.advance(DAY_S / 4)
                assert soon(lambda: max(store.lease_ages_s()) <= 0.25 * DAY_S)
            penstock.vacuum(store, older_than=timedelta(0))
        assert numbers(source) == expected
    del source
    assert threads_end()
    assert store.lease_ages_s() == []
    penstock.vacuum(store, older_than=timedelta(0))
    with pytest.raises(SnapshotExpiredError):
        numbers(ds.numpy(batch_size=8))


def test_a_loader_that_waits_between_steps_stays_leased() -> None:
    store = Clock()
    ds = old_version(store)
    with leased(ds.numpy(batch_size=8), ds, store) as loader:
        found: list[int] = []
        for batch in loader:
            found += batch["n"].tolist()
            for _ in range(20):
                store.advance(DAY_S / 4)
                assert soon(lambda: max(store.lease_ages_s()) <= 0.25 * DAY_S)
            penstock.vacuum(store, older_than=timedelta(0))
    assert found == list(range(ROWS))


def test_a_failed_renewal_is_retried_and_warned_about_once() -> None:
    store = Clock()
    store.uri = "memory://failing"
    ds = old_version(store)
    with warnings.catch_warnings(record=True) as caught, leased(ds.numpy(batch_size=8), ds, store):
        warnings.simplefilter("always")
        store.failing = True
        for _ in range(16):
            store.attempts = 0
            store.advance(DAY_S / 4)
            assert soon(lambda: store.attempts > 0)
        store.failing = False
        store.advance(DAY_S / 4)
        assert soon(lambda: max(store.lease_ages_s()) == 0)
        penstock.vacuum(store, older_than=timedelta(0))
        assert numbers(ds.numpy(batch_size=8)) == list(range(ROWS))
    ours = [str(warning.message) for warning in caught if issubclass(warning.category, PenstockWarning)]
    assert len(ours) == 1
    assert "could not be renewed (injected by a test)" in ours[0]
