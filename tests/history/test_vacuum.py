"""Vacuum beside other operations, in arranged interleavings: no version that exists afterwards lacks an object."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import SnapshotExpiredError
from penstock.history import HeldLease
from penstock.history._leases import live_leases, store_time
from penstock.storage import ObjectInfo, Store, open_store
from penstock.testing import HookedStore
from tests.history.maintenance import compact

HANG_S = 120.0


def table(place: Any = "memory://", rows: int = 10) -> penstock.Dataset:
    ds = penstock.create(place, {"x": "int64"})
    ds.append({"x": list(range(rows))})
    ds.commit("first")
    return ds


def xs(ds: penstock.View) -> list[int]:
    return [int(x) for x in ds["x"][:]]


def test_a_renewed_lease_lasts_from_its_renewal(tmp_path: Path) -> None:
    ds = table(tmp_path)
    store = ds._session.store
    held = HeldLease(store, ds._session.version.commit, seconds=3600.0)
    (file,) = (tmp_path / "leases").iterdir()
    long_ago = store_time(store) - 3601
    os.utime(file, (long_ago, long_ago))
    assert not live_leases(store, now_s=store_time(store))
    held.renew()
    assert len(live_leases(store, now_s=store_time(store))) == 1
    held.release()
    assert not list(open_store(str(tmp_path)).list("leases/"))


class AgedStore(HookedStore):
    """The objects that exist when it is made are forty days old, so that the default retention has passed for them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, lambda *_: None)
        self._old = {item.key for item in store.list("")}

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return (self._aged(item) for item in super().list(prefix))

    def head(self, key: str) -> ObjectInfo:
        return self._aged(super().head(key))

    def _aged(self, item: ObjectInfo) -> ObjectInfo:
        return item._replace(modified_s=item.modified_s - 40 * 86_400) if item.key in self._old else item


@cache
def history() -> dict[str, bytes]:
    """Versions that only history holds: `main@1` has 0 to 9, `side@1` also 100 to 104."""
    inner = open_store("memory://")
    main = table(inner)
    side = main.branches.create("side")
    side.append({"x": list(range(100, 105))})
    side.commit()
    for ds in (side, main):
        ds.delete(positions=slice(0, None))
        ds.append({"x": [7]})
        ds.commit()
        compact(ds)
    return {item.key: bytes(inner.get(item.key)) for item in inner.list("")}


def aged_history() -> AgedStore:
    store = open_store("memory://")
    for key, data in history().items():
        store.put(key, data)
    return AgedStore(store)


def reset(store: Store) -> None:
    penstock.load(store).reset("main@1")


def branch(store: Store) -> None:
    penstock.load(store).branches.create("new", at="main@1")


def tag(store: Store) -> None:
    penstock.load(store).tags.create("new", at="main@1")


def merge(store: Store) -> None:
    penstock.load(store).merge("side@1", on_conflict="theirs")


def save_view(store: Store) -> None:
    penstock.load(store, version=1).save_view("new")


OPERATIONS: dict[Callable[[Store], None], tuple[dict[str, str], set[int]]] = {
    reset: ({"branch": "main"}, set(range(10))),
    branch: ({"branch": "new"}, set(range(10))),
    tag: ({"tag": "new"}, set(range(10))),
    save_view: ({"view": "new"}, set(range(10))),
    merge: ({"branch": "main"}, {7, *range(100, 105)}),
}
POINTS = frozenset(
    {
        ("list", "log/"),
        ("list", "refs/"),
        ("list", "views/"),
        ("list", "leases/"),
        ("list", "vacuums/"),
        ("put", "vacuums/"),
    }
)
GATES = frozenset(
    {
        ("put", "leases/"),
        ("list", "vacuums/"),
        ("create", "log/"),
        ("create", "refs/"),
        ("put", "views/"),
        ("create", "views/"),
        ("delete", "leases/"),
    }
)


def matches(calls: frozenset[tuple[str, str]], verb: str, keys: Sequence[str]) -> bool:
    return any(verb == name and any(key.startswith(prefix) for key in keys) for name, prefix in calls)


def interleave(
    vacuum: Callable[[Store], Any], operation: Callable[[Store], None], store: Store, *, start: int, end: int, gate: int
) -> Exception | None:
    """Start the operation at one point of the vacuum, pause it at its gate, and let it end at a later point."""
    paused, resumed, raised = threading.Event(), threading.Event(), list[Exception]()
    gates, points = iter(range(10**6)), iter(range(10**6))

    def at_gate(verb: str, keys: Sequence[str]) -> None:
        if matches(GATES, verb, keys) and next(gates) == gate:
            paused.set()
            assert resumed.wait(HANG_S)

    def operate() -> None:
        try:
            operation(HookedStore(store, at_gate))
        except Exception as error:
            raised.append(error)
        paused.set()

    def at_point(verb: str, keys: Sequence[str]) -> None:
        point = next(points) if matches(POINTS, verb, keys) else -1
        if point == start:
            thread.start()
            assert paused.wait(HANG_S)
        if point == end:
            finish()

    def finish() -> None:
        resumed.set()
        thread.join(HANG_S)
        assert not thread.is_alive()

    thread = threading.Thread(target=operate)
    vacuum(HookedStore(store, at_point))
    finish()
    return raised[0] if raised else None


@cache
def count(run: Callable[[Store], None], calls: frozenset[tuple[str, str]]) -> int:
    """How many of these calls an operation makes."""
    seen = []
    run(HookedStore(aged_history(), lambda verb, keys: seen.append(verb) if matches(calls, verb, keys) else None))
    return len(seen)


def vacuum_all(store: Store) -> None:
    penstock.vacuum(store, older_than=timedelta(0))


def vacuum_old(store: Store) -> None:
    penstock.vacuum(store)


@settings(max_examples=25)
@given(
    run=st.sampled_from([vacuum_all, vacuum_old]),
    operation=st.sampled_from(list(OPERATIONS)),
    times=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3),
)
@example(run=vacuum_old, operation=merge, times=(0.0, 0.99, 0.0)).via("a vacuum between staging and commit")
@example(run=vacuum_all, operation=reset, times=(0.0, 0.75, 0.5)).via("a lease released between two listings")
@example(run=vacuum_all, operation=branch, times=(0.0, 0.75, 0.5)).via("a lease released between two listings")
@example(run=vacuum_old, operation=tag, times=(0.9, 0.9, 0.0)).via("an expired version")
def test_what_an_operation_carries_over_outlives_a_vacuum(
    run: Callable[[Store], None], operation: Callable[[Store], None], times: tuple[float, float, float]
) -> None:
    """The operation begins anywhere in the vacuum, pauses anywhere, and ends anywhere later in the vacuum."""
    points, gates = count(run, POINTS), count(operation, GATES)
    assert points > 8
    assert gates
    start, end = sorted(int(time * points) for time in times[:2])
    store = aged_history()
    error = interleave(run, operation, store, start=start, end=end, gate=int(times[2] * gates))
    assert error is None or isinstance(error, SnapshotExpiredError), repr(error)
    place, expected = OPERATIONS[operation]
    if error is None:
        event("succeeds")
        assert set(xs(penstock.load(store, **place))) == expected  # type: ignore[call-overload]
    assert penstock.verify(store).damaged == []


@pytest.mark.parametrize(("old", "new"), [("a", "z"), ("z", "a")])
def test_a_branch_renamed_long_ago_and_deleted_now_is_retained(old: str, new: str) -> None:
    inner = open_store("memory://")
    ds = table(inner)
    branch = ds.branches.create(old)
    branch.append({"x": [10]})
    branch.commit()
    ds.branches.rename(old, new)
    store = AgedStore(inner)
    penstock.load(store).branches.delete(new)
    penstock.vacuum(store)
    assert len(branch.checkout()) == 11


def test_a_commit_to_a_deleted_branch_is_retained_from_its_own_time() -> None:
    inner = open_store("memory://")
    ds = table(inner)
    branch = ds.branches.create("b")
    ds.branches.delete("b")
    store = AgedStore(inner)
    branch.append({"x": [10]})
    branch.commit()
    penstock.vacuum(store)
    assert len(branch.checkout()) == 11


def test_a_tag_of_a_version_that_the_vacuum_has_not_listed_is_retained() -> None:
    """A commit and its tag arrive while a vacuum reads the log and the refs."""
    inner = open_store("memory://")
    ds = table(inner)
    calls = iter(range(10**6))

    def arrive(verb: str, _: Sequence[str]) -> None:
        if verb == "list":
            number = next(calls)
            ds.append({"x": [number]})
            ds.commit()
            ds.tags.create(f"t{number}")
            if number:
                ds.delete(positions=slice(0, None))
                ds.commit()

    vacuum_all(HookedStore(inner, arrive))
    for name in ds.tags:
        assert len(penstock.load(inner, tag=name)) > 0
    assert penstock.verify(inner).damaged == []


def test_files_that_are_not_of_the_table_are_ignored(tmp_path: Path) -> None:
    ds = table(tmp_path)
    side = ds.branches.create("side")
    side.append({"x": [10]})
    side.commit()
    ds.tags.create("t")
    HeldLease(ds._session.store, ds._session.version.commit, seconds=0.0)
    ds.delete(positions=[0])
    ds.commit()
    vacuum_all(ds._session.store)
    stray = []
    for folder in [path for path in tmp_path.rglob("*") if path.is_dir()]:
        for name in (".DS_Store", "notes.txt", "00000000000000000001 (copy).json", "x.json", "zzz"):
            stray.append(folder / name)
            stray[-1].write_bytes(b"not of the table")
            os.utime(stray[-1], (0, 0))
    assert len(stray) > 60
    ds = penstock.load(tmp_path)
    assert (dict(ds.branches), dict(ds.tags)) == ({"main": "main@2", "side": "side@1"}, {"t": "main@1"})
    ds.merge("side")
    ds.tags.create("u")
    ds.tags.rename("u", "v")
    ds.branches.delete("side")
    ds.reset("t")
    with ds.lease():
        vacuum_all(ds._session.store)
    assert xs(penstock.load(tmp_path, tag="v")) == list(range(1, 11))
    assert all(path.exists() for path in stray), "vacuum deletes objects of the table alone"
    assert not penstock.verify(tmp_path).damaged
