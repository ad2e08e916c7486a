"""A process dies at each of its store calls: the table is as before or as after, and everything works from there."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache

import pytest

import penstock
from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.storage import Store, open_store
from penstock.testing import HookedStore
from tests.history.maintenance import compact

State = dict[str, list[int]]


class Killed(BaseException):
    """The process ends here: no later call reaches the store."""


@cache
def history() -> dict[str, bytes]:
    store = open_store("memory://")
    main = penstock.create(store, {"x": "int64"})
    main.append({"x": list(range(5))})
    main.commit()
    side = main.branches.create("side")
    side.append({"x": [10, 11]})
    side.commit()
    main.tags.create("old")
    main.delete(positions=[0])
    main.commit()
    main.quarantine(row_ids={int(main[0:1]["_row_id"][0]): "bad"})
    return {item.key: bytes(store.get(item.key)) for item in store.list("")}


def new_store() -> Store:
    store = open_store("memory://")
    for key, data in history().items():
        store.put(key, data)
    return store


def state(store: Store) -> State:
    """The rows of all branches and tags, and those that loaders leave out."""
    ds = penstock.load(store)
    found = {name: penstock.load(store, branch=name) for name in ds.branches}
    found.update({f"tag {name}": penstock.load(store, tag=name) for name in ds.tags})
    rows = {name: sorted(int(x) for x in table["x"][:]) if len(table) else [] for name, table in found.items()}
    return {**rows, **{f"quarantine of {name}": sorted(table.quarantined()) for name, table in found.items()}}


def write(store: Store) -> None:
    with penstock.load(store) as ds:
        ds.append({"x": [100, 101]})
        ds.update(positions=[0], data={"x": 7})
        ds.delete(positions=[1])


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "write": write,
    "merge": lambda store: penstock.load(store).merge("side"),
    "merge an old version": lambda store: penstock.load(store, branch="side").merge("main@1"),
    "reset": lambda store: penstock.load(store).reset("main@1"),
    "branch": lambda store: penstock.load(store).branches.create("new", at="main@1"),
    "tag": lambda store: penstock.load(store).tags.create("new", at="side"),
    "rename": lambda store: penstock.load(store).branches.rename("side", "new"),
    "delete branch": lambda store: penstock.load(store).branches.delete("side"),
    "quarantine": lambda store: penstock.load(store).quarantine(row_ids=[2], reason="bad"),
    "release": lambda store: penstock.load(store).release(),
    "compact": lambda store: compact(penstock.load(store)),
    "vacuum": lambda store: penstock.vacuum(store, older_than=timedelta(0)),
}


def dies_at(last: int) -> Callable[[str, Sequence[str]], None]:
    """A hook that lets this many calls pass, and none after them."""
    count = iter(range(10**6))

    def die(verb: str, _: Sequence[str]) -> None:
        if next(count) >= last:
            raise Killed(verb)

    return die


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_process_that_dies_at_any_call_leaves_the_table_before_or_after(name: str) -> None:
    operation = OPERATIONS[name]
    store = new_store()
    before = state(store)
    calls: list[str] = []
    operation(HookedStore(store, lambda verb, _: calls.append(verb)))
    after = state(store)
    allowed = [before, after]
    if name == "rename":  # not atomic: both names exist for a moment
        allowed.append({**before, "new": before["side"], "quarantine of new": before["quarantine of side"]})
    changing = [n for n, verb in enumerate(calls) if verb in ("put", "create", "put_stream", "delete")]
    for last in sorted({*changing, *(n + 1 for n in changing)}):
        store = new_store()
        with suppress(Killed):
            operation(HookedStore(store, dies_at(last)))
        found = state(store)
        assert found in allowed, f"call {last} of {len(calls)}"
        penstock.vacuum(store, older_than=timedelta(0))
        assert state(store) == found
        assert penstock.verify(store).damaged == []
        if found != after:
            try:
                operation(store)
            except (AlreadyExistsError, NotFoundError):
                assert name == "rename"
            else:
                assert state(store) == after
