"""Small tables of every shape, and helpers that read them through `ds.pytorch` on many ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Text, View
from penstock.format import new_int_id
from penstock.storage import Store
from tests.servers import new_location

Int64Array = npt.NDArray[np.int64]
Key = slice | list[int] | None

few = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
SHUFFLE = Shuffle(block_bytes=1500, lanes=4)
MANY_LANES = replace(SHUFFLE, lanes=24)
MIXED: dict[str, Any] = {"shuffle": SHUFFLE, "num_workers": 0}
WORLDS = (3, 6, 7, 24, 65)
X_BYTES = 300
"""Enough for the column to have files of its own."""
LARGE_BYTES = 33_000
SCHEMA = {
    "n": Column(Tensor("int64"), page_bytes=512),
    "t": Column(Text(), page_bytes=512),
    "x": Column(Tensor("uint8", (X_BYTES,)), page_bytes=5 * X_BYTES, file_bytes=100 * X_BYTES),
}


@dataclass(frozen=True)
class Table:
    """A table, and what its column n holds."""

    ds: Dataset
    numbers: Int64Array

    def view(self, key: Key) -> tuple[View, Int64Array]:
        """Some rows, and what they should be; None is the table itself."""
        return (self.ds, self.numbers) if key is None else (self.ds[key], self.numbers[key])


def rows_of(numbers: Int64Array) -> dict[str, Any]:
    x = np.repeat((numbers % 251).astype(np.uint8)[:, None], X_BYTES, axis=1)
    return {"n": numbers, "t": [f"row {n}" for n in numbers], "x": x}


@cache
def table(name: str) -> Table:
    """One of `TABLES`, created on first use, in memory or in a folder."""
    ds, numbers = _MAKERS[name]()
    ds.commit()
    return Table(ds, numbers)


def _of(*sizes: int, kind: str = "memory") -> tuple[Dataset, Int64Array]:
    """A fragment for each size."""
    ds = penstock.create(new_location(kind).uri, SCHEMA)
    numbers = np.arange(sum(sizes))
    for part in np.split(numbers, np.cumsum(sizes)[:-1]):
        ds.append(rows_of(part))
    return ds, numbers


def _broken() -> tuple[Dataset, Int64Array]:
    """Two leaves of fragments of all sizes, with deleted rows everywhere; three fragments have none left."""
    sizes = [17, *(1 + 7 * k % 40 for k in range(36)), 23, 5]
    ds, numbers = _of(*sizes)
    starts = np.cumsum([0, *sizes])
    gone = np.random.default_rng(0).random(len(numbers)) < 0.2
    for fragment in (0, 12, len(sizes) - 1):
        gone[starts[fragment] : starts[fragment + 1]] = True
    gone[starts[5] : starts[5] + 12] = True  # whole pages of the heavy column
    ds.delete(positions=np.flatnonzero(gone).tolist())
    return ds, numbers[~gone]


def _late() -> tuple[Dataset, Int64Array]:
    """The heaviest column is not in the first fragment."""
    ds = penstock.create(new_location("memory").uri, {name: SCHEMA[name] for name in ("n", "t")})
    numbers = np.arange(210)
    ds.append({name: values for name, values in rows_of(numbers[:101]).items() if name != "x"})
    ds.add_column("x", SCHEMA["x"], fill=np.zeros(X_BYTES, np.uint8))
    ds.append(rows_of(numbers[101:]))
    return ds, numbers


def _long() -> tuple[Dataset, Int64Array]:
    """Enough rows for a lane to be planned in several chunks, in pages that blocks can be cut from."""
    ds = penstock.create(new_location("memory").uri, {"n": Column(Tensor("int64"), page_bytes=1024)})
    numbers = np.arange(9001)
    for part in np.split(numbers, [4000, 4001]):
        ds.append({"n": part})
    return ds, numbers


def large(place: str | Store, *sizes: int, rows_per_page: int = 1) -> tuple[Dataset, Int64Array]:
    """Rows that are large enough for a read of their own, if they have a page of their own."""
    x = Column(Tensor("uint8", (LARGE_BYTES,)), page_bytes=rows_per_page * LARGE_BYTES, file_bytes=30 * LARGE_BYTES)
    ds = penstock.create(place, SCHEMA | {"x": x})
    numbers = np.arange(sum(sizes))
    for part in np.split(numbers, np.cumsum(sizes)[:-1]):
        ds.append(rows_of(part) | {"x": np.repeat((part % 251).astype(np.uint8)[:, None], LARGE_BYTES, axis=1)})
    ds.commit()
    return ds, numbers


def _large() -> tuple[Dataset, Int64Array]:
    ds, numbers = large(new_location("folder").uri, 90, 1, 62)
    gone = [5, 40, 41, 42, 43, 44, 140]
    ds.delete(positions=gone)
    return ds, np.delete(numbers, gone)


_MAKERS: dict[str, Callable[[], tuple[Dataset, Int64Array]]] = {
    "odd": lambda: _of(397),
    "folder": lambda: _of(113, 1, 90, kind="folder"),
    "large": _large,
    "broken": _broken,
    "late": _late,
    "long": _long,
    "one row": lambda: _of(1),
    "no rows": lambda: (penstock.create(new_location("memory").uri, SCHEMA), np.zeros(0, np.int64)),
}
TABLES = tuple(_MAKERS)


def of_fragments(store: Store, fragments: int, rows: int) -> Dataset:
    """A table of `fragments` fragments of `rows` rows that share one file; every seventh has one live row."""
    ds = penstock.create(store, {"n": Column(Tensor("int64"), page_bytes=16)})
    ds.append({"n": np.arange(rows)})
    ds.commit()
    session = ds._session
    [model] = session.tree.fragments(session.snapshot.nodes)
    deleted = np.packbits(np.arange(rows) < rows - 1, bitorder="little").tobytes()
    made = [
        replace(
            model,
            id=new_int_id(),
            row_ids=session.row_ids.allocate(rows),
            deleted=None if number % 7 else deleted,
            live=rows if number % 7 else 1,
        )
        for number in range(fragments)
    ]
    session.changes.record("append")
    session.update_snapshot(session.tree.append(session.snapshot.nodes, made), session.snapshot.schema, {})
    ds.commit()
    return penstock.load(store)


class Batch(NamedTuple):
    """The numbers of a batch and its padding mask; None without a `_pad` column."""

    numbers: Int64Array
    padding: npt.NDArray[np.bool_] | None

    @property
    def real(self) -> Int64Array:
        return self.numbers if self.padding is None else self.numbers[~self.padding]


def batch_of(found: dict[str, Any]) -> Batch:
    """A batch as it was delivered; checks that the columns of a row belong together."""
    numbers = found["n"].numpy().copy()
    if "t" in found:
        assert found["t"] == [f"row {n}" for n in numbers]
    if "x" in found:
        x = found["x"].numpy()
        assert (x == x[:, :1]).all()
        assert ((x[:, 0] == numbers % 251) | (x[:, 0] == 0)).all()
    return Batch(numbers, found["_pad"].numpy().copy() if "_pad" in found else None)


def selected(view: Any, columns: Sequence[str] | None) -> Any:
    """A view of some columns, or of all."""
    return view if columns is None else view.select(columns)


def read(
    view: Any, *, columns: Sequence[str] | None = None, rank: int = 0, ranks: int = 1, **options: Any
) -> list[Batch]:
    """A rank's batches of the first epoch."""
    with selected(view, columns).pytorch(distributed=(rank, ranks), **options) as loader:
        batches = [batch_of(found) for found in loader]
        assert len(batches) == len(loader)
    return batches


def read_all(view: Any, *, ranks: int, **options: Any) -> list[list[Batch]]:
    """The same for every rank."""
    return [read(view, rank=rank, ranks=ranks, **options) for rank in range(ranks)]


def by_step(all_ranks: Sequence[Sequence[Batch]]) -> Iterator[Int64Array]:
    """The sorted rows of each step over all ranks, without padding."""
    for batches in zip(*all_ranks, strict=True):
        yield np.sort(np.concatenate([batch.real for batch in batches]))


def joined(parts: Sequence[Int64Array]) -> Int64Array:
    return np.concatenate([np.zeros(0, np.int64), *parts])


# What the order depends on, …
columns = st.sampled_from([None, ["n"], ["n", "t"], ["x", "n"], ["_row_id", "n"]])
shuffles = st.one_of(
    st.none(),
    st.builds(
        Shuffle,
        seed=st.integers(0, 3),
        block_bytes=st.sampled_from([1, 700, 1500, 5000, 1 << 20]),
        spread=st.sampled_from([0, 0.3, 1, 4.5, 100]),
        lanes=st.one_of(st.sampled_from([1, 2, 4, 24]), st.integers(1, 40)),
    ),
)
# … and what it does not.
machines = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 3),
        "prefetch_factor": st.integers(1, 4),
        "memory_budget": st.sampled_from([None, None, 1 << 20, 8 << 20]),
    }
)
worlds = st.one_of(st.integers(1, 7), st.sampled_from([1, 2, 4]))


@st.composite
def views(draw: st.DrawFn, names: Sequence[str] = TABLES) -> tuple[Table, Key]:
    """A table and some of its rows: all, a slice, or a list in any order and with repeats."""
    chosen = table(draw(st.sampled_from(names)))
    count = len(chosen.numbers)
    form = draw(st.sampled_from(["all", "all", "slice", "steps", "backwards", "list", "sorted"]))
    if form == "all" or not count:
        return chosen, None
    start, stop = sorted((draw(st.integers(0, count)), draw(st.integers(0, count))))
    if form in ("slice", "steps"):
        return chosen, slice(start, stop, 1 if form == "slice" else draw(st.integers(2, 9)))
    if form == "backwards":
        return chosen, slice(None, None, -draw(st.integers(1, 5)))
    some = draw(st.lists(st.integers(0, count - 1), max_size=90))
    return chosen, sorted(some) if form == "sorted" else some
