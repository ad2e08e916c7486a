"""Splits of tables and views: rows stay in their split, groups never straddle, and little is read."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Bytes, Column, Json, Label, Tensor, Text
from penstock.errors import InvalidInputError, NotFoundError
from penstock.storage import open_store
from penstock.testing import CountingStore

SHARES = {"train": 0.6, "val": 0.4}
LABELS = ("cat", "dog", "bird")
COLUMNS: dict[str, Any] = {
    "n": int,
    "episode": int,
    "name": Column(Text(), nullable=True),
    "label": Label(LABELS),
    "image": Tensor("uint8", (64,)),
}


def rows(start: int, count: int) -> dict[str, Any]:
    numbers = np.arange(start, start + count)
    return {
        "n": numbers,
        "episode": numbers // 5,
        "name": [None if n % 11 == 0 else f"episode {n // 5}" for n in numbers],
        "label": numbers // 5 % 3,
        "image": np.zeros((count, 64), np.uint8),
    }


def new_table(count: int = 200) -> penstock.Dataset:
    ds = penstock.create(open_store("memory://"), COLUMNS)
    ds.append(rows(0, count))
    ds.commit()
    return ds


def ids(view: penstock.View) -> set[int]:
    return set(np.asarray(view["_row_id"][:]).tolist())


def split_by_id(view: penstock.View, **options: Any) -> dict[int, str]:
    """The split of each row, by row id; fails if a row is in two."""
    found = {name: ids(part) for name, part in view.split(SHARES, **options).items()}
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == len(view)
    return {id: name for name, part in found.items() for id in part}


OPTIONS: list[dict[str, Any]] = [{}, {"by": "episode"}, {"by": "name"}, {"stratify": "label"},
                                 {"by": "episode", "stratify": "label"}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@settings(max_examples=10)
@given(
    changes=st.lists(st.sampled_from(["append", "delete", "update", "compact", "merge"]), max_size=5), data=st.data()
)
def test_a_row_stays_in_its_split(options: dict[str, Any], changes: list[str], data: st.DataObject) -> None:
    ds = new_table(60)
    seed = data.draw(st.integers(0, 3), "seed")
    known = split_by_id(ds, seed=seed, **options)
    for step, change in enumerate(changes):
        if change == "append":
            ds.append(rows(int(max(ds["n"][:], default=0)) + 1, 20))
        elif change == "delete":
            ds.delete(positions=data.draw(st.lists(st.integers(0, len(ds) - 1), max_size=5), "deleted"))
        elif change == "update":
            ds.update(positions=[0], data={"image": np.ones((1, 64), np.uint8)})
        elif change == "compact":
            penstock.compact(ds._session.store)
            ds.checkout()
        else:
            side = ds.branches.create(f"side-{step}")
            side.append(rows(1000 + 20 * step, 20))
            side.commit()
            ds.append(rows(5000 + 20 * step, 20))
            ds.commit()
            ds.merge(f"side-{step}")
        ds.commit()
        now = split_by_id(ds, seed=seed, **options)
        assert all(now[id] == split for id, split in known.items() if id in now)
        known |= now


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_a_view_splits_like_its_table(options: dict[str, Any], data: st.DataObject) -> None:
    ds = new_table(60)
    known = split_by_id(ds, **options)
    view: penstock.View = ds
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(view)))
        keys: list[Any] = [slice(start, None), slice(None, None, 2), slice(None, None, -1), pc.field("n") > 20,
                           np.arange(len(view))[::-1][: start + 1]]  # fmt: skip
        view = view[data.draw(st.sampled_from(keys), "key")]
    assert split_by_id(view, **options) == {id: known[id] for id in ids(view)}
    for name, part in view.split(SHARES, **options).items():
        order = [id for id in np.asarray(view["_row_id"][:]).tolist() if known[id] == name]
        assert np.asarray(part["_row_id"][:]).tolist() == order


@given(by=st.sampled_from(["episode", "name", "label"]), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_groups_never_straddle(table: penstock.Dataset, by: str, seed: int) -> None:
    groups = [set(part[by][:].tolist() if by != "name" else part[by][:]) for part in
              table.split({"a": 0.3, "b": 0.3, "c": 0.3}, seed=seed, by=by).values()]  # fmt: skip
    assert sum(map(len, groups)) == len(set().union(*groups))


@pytest.fixture(scope="module")
def table() -> penstock.Dataset:
    return new_table()


KINDS: list[tuple[Any, list[Any]]] = [
    ("int8", [-1, 2, 3]),
    ("uint64", [2**64 - 1, 1, 2]),
    ("bool", [True, False, True]),
    ("datetime64[ms]", [np.datetime64(n, "ms") for n in (1, 2, 3)]),
    ("timedelta64[s]", [np.timedelta64(n, "s") for n in (1, 2, 3)]),
    (Text(), ["", "é", "long " * 50]),
    (Bytes(), [b"", b"\xff", b"x"]),
    (Label(LABELS), ["cat", "dog", "bird"]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_any_light_column_groups_rows(kind: Any, values: list[Any]) -> None:
    column = Column(Tensor(kind) if isinstance(kind, str) else kind, nullable=True)
    ds = penstock.create(open_store("memory://"), {"key": column})
    ds.append({"key": [*values, None] * 50})
    halves = {name: part["key"][:] for name, part in ds.split({"a": 0.5, "b": 0.5}, by="key", seed=3).items()}
    counts = [{str(value): list(map(str, part)).count(str(value)) for value in part} for part in halves.values()]
    assert not counts[0].keys() & counts[1].keys()
    distinct = len({str(value) for value in values}) + 1
    assert sum(map(len, counts)) == distinct
    assert {count % 50 for part in counts for count in part.values()} == {0}


def test_the_hash_of_text_is_a_contract() -> None:
    ds = penstock.create(open_store("memory://"), {"name": Text()})
    ds.append({"name": [f"episode {n}" for n in range(20)]})
    val = ds.split({"train": 0.7, "val": 0.3}, by="name")["val"]["name"][:]
    assert [int(name.split()[1]) for name in val] == [3, 11, 18, 19]


def test_each_class_sorted_by_row_id_is_divided_exactly_but_for_a_few_rows() -> None:
    ds = penstock.create(open_store("memory://"), {"label": Label(tuple("abcd"))})
    sizes = [40, 500, 3000, 9]
    ds.append({"label": np.repeat(np.arange(4), sizes)})
    val = ds.split({"train": 0.9, "val": 0.1}, stratify="label")["val"]
    for count, size in zip(np.bincount(val["label"][:], minlength=4), sizes, strict=True):
        assert abs(count - size / 10) <= 4


def test_a_stratified_group_has_one_stratum() -> None:
    ds = new_table(20)
    ds.update(positions=[7], data={"label": [0]})
    with pytest.raises(InvalidInputError, match=r"group of column 'episode'.*'label', such as rows \d and \d"):
        ds.split(SHARES, by="episode", stratify="label")
    assert len(ds[:5].split(SHARES, by="episode", stratify="label")) == 2


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"by": "nothing"}, NotFoundError, "nothing"),
        ({"stratify": "nothing"}, NotFoundError, "nothing"),
        ({"by": "float"}, InvalidInputError, "column 'float' holds .*; rows are split by integers"),
        ({"by": "json"}, InvalidInputError, "column 'json' holds json"),
        ({"stratify": "vector"}, InvalidInputError, "column 'vector' holds"),
        ({"seed": 0.5}, InvalidInputError, "seed of a split"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], error: type[Exception], sentence: str) -> None:
    ds = penstock.create(
        open_store("memory://"), {"float": float, "json": Json(), "vector": Tensor("int8", (3,)), "n": int}
    )
    with pytest.raises(error, match=sentence):
        ds.split(SHARES, **options)
    with pytest.raises(InvalidInputError, match=r"sum to 1\.2"):
        ds.split({"train": 0.9, "val": 0.3})


def test_an_empty_table_has_empty_splits() -> None:
    ds = penstock.create(open_store("memory://"), COLUMNS)
    for options in OPTIONS:
        assert {name: len(part) for name, part in ds.split(SHARES, **options).items()} == {"train": 0, "val": 0}


def test_splits_stream_and_keep_the_columns_of_their_view(table: penstock.Dataset) -> None:
    parts = table.select("n").split(SHARES, by="episode")
    seen = {name: [n for batch in part.numpy(batch_size=16, shuffle=True) for n in batch["n"].tolist()]
            for name, part in parts.items()}  # fmt: skip
    assert all(part.schema.names == ["n"] for part in parts.values())
    assert sorted(seen["train"] + seen["val"]) == list(range(200))
    assert len(seen["train"]) == len(parts["train"])


def test_a_split_reads_only_what_decides() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {**COLUMNS, "image": Tensor("uint8", (1 << 16,))})
    ds.append({**rows(0, 50), "image": np.zeros((50, 1 << 16), np.uint8)})
    ds.commit()
    ds = penstock.load(store)
    list(ds._reader.row_ids(np.arange(50)))  # manifests are in memory from here on
    store.requests.clear()
    store.bytes.clear()
    ds.split(SHARES)
    assert not store.requests
    ds.split(SHARES, by="episode", stratify="label")
    assert sum(store.bytes.values()) < 1 << 14


@pytest.mark.parametrize("options", [{}, {"stratify": "label"}, {"seed": 3}, {"by": "name"}], ids=str)
@pytest.mark.parametrize(
    "windows", [{"length": 3}, {"offsets": {"n": [-1, 0, 2]}, "ends": "pad", "stride": 2}], ids=str
)
def test_windows_split_as_the_rows_of_their_episodes(windows: dict[str, Any], options: dict[str, Any]) -> None:
    ds = new_table()
    ds.update("name IS NULL", {"name": "none"})
    ds.update("true", values={"name": "'episode ' || episode"})
    ds.delete(positions=[0, 7, 31])
    ds.commit()
    view = ds[::-1].windows(within="episode", order_by="n", **windows)
    found = view.split(SHARES, **options)
    expected = ds[::-1].split(SHARES, **{"by": "episode", **options})
    for name, part in expected.items():
        wanted = part.windows(within="episode", order_by="n", **windows)
        assert [sample["n"].tolist() for sample in found[name]] == [sample["n"].tolist() for sample in wanted]
        assert len(found[name][:2].split(SHARES, **options)[name]) == 2
    assert sum(map(len, found.values())) == len(view)
    drawn = [{n for sample in part for n in sample["n"].tolist()} for part in found.values()]
    assert not set.intersection(*drawn)
    batches = found["train"].select(["n"]).numpy(batch_size=8, shuffle=True)
    real = [batch["n"][~batch["_pad"]] if "_pad" in batch else batch["n"] for batch in batches]
    assert sorted(map(tuple, np.concatenate(real).tolist())) == sorted(
        tuple(one["n"].tolist()) for one in found["train"]
    )


def test_a_sample_of_several_splits_is_refused() -> None:
    ds = new_table()
    for view in (ds.windows(4), ds.windows(4, within="label").select(["n"])):
        with pytest.raises(InvalidInputError, match="has rows of several splits: split by a column"):
            view.split(SHARES, by="n")
    with pytest.raises(InvalidInputError, match="has rows of several splits"):
        ds.windows(4).split(SHARES)
    rest = ds.windows(5, 5, within="episode").split({"train": 0.5})
    assert 0 < len(rest["train"]) < 40
    assert ds.windows(1).split(SHARES)["train"][0]["n"].tolist() == [ds.split(SHARES)["train"][0]["n"]]
