"""Add, drop and rename columns; existing rows and versions stay as they are."""

import cProfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Boxes, Bytes, Column, Dataset, Image, Json, Label, List, Struct, Tensor, Text
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format.kinds import Kind
from penstock.storage import open_store
from penstock.testing import CountingStore, assert_same
from tests.format.test_kinds import any_kind, same


def sparse_table(store: Any = "memory://") -> Dataset:
    """Rows 0 to 29 in five fragments with every third row deleted; one fragment has no live row."""
    ds = penstock.create(store, {"n": int, "t": str})
    for numbers in ([0, 1, 2, 3, 4], [5], [6], range(7, 20), range(20, 30)):
        ds.append({"n": list(numbers), "t": [str(number) for number in numbers]})
    ds.commit()
    ds.delete(positions=[number for number in range(30) if number % 3 == 0])
    ds.commit()
    return ds


LIVE = [number for number in range(30) if number % 3]


def column(ds: penstock.View, name: str) -> list[Any]:
    return [row[name] for row in ds]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"column": int, "fill": 7}, [7] * 20),
        ({"fill": 7}, [7] * 20),
        ({"fill": "x"}, ["x"] * 20),
        ({"fill": [1.5, 2.5]}, [[1.5, 2.5]] * 20),
        ({"fill": False}, [False] * 20),
        ({"column": Column(Tensor("int8"), nullable=True)}, [None] * 20),
        ({"column": Column(Boxes(), nullable=True)}, [None] * 20),
        ({"column": int, "values": LIVE}, LIVE),
        ({"values": np.array(LIVE, np.int16)}, LIVE),
        ({"values": pa.array(LIVE)}, LIVE),
        ({"values": [str(number) for number in LIVE]}, [str(number) for number in LIVE]),
        ({"column": Column(Text(), nullable=True), "values": [None, "a"] * 10}, [None, "a"] * 10),
        ({"compute": lambda batch: batch["n"] * 2, "inputs": ["n"]}, [2 * number for number in LIVE]),
        ({"column": "float32", "compute": lambda batch: batch["n"]}, LIVE),
        ({"compute": lambda batch: [text + "!" for text in batch["t"]]}, [f"{number}!" for number in LIVE]),
    ],
)
def test_a_column_is_added_to_a_table_with_deleted_rows(options: Any, expected: list[Any], committed: bool) -> None:
    ds = sparse_table()
    ds.add_column("x", **options)
    if committed:
        ds.commit()
        ds = penstock.load(ds._session.store)
    assert ds.schema.names == ["n", "t", "x"]
    assert_same(column(ds, "x"), expected)
    assert_same(column(ds[[19, 0, 7]].select("x"), "x"), [expected[19], expected[0], expected[7]])
    assert column(ds, "n") == LIVE
    ds.append([{"n": 99, "t": "z", "x": expected[0]}])
    ds.delete(positions=[0, 1])
    assert_same(column(ds, "x"), [*expected[2:], expected[0]])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), any_kind())
def test_a_fill_value_of_any_kind_is_the_value_of_every_row(data: st.DataObject, drawn: tuple[Kind, Any]) -> None:
    kind, strategy = drawn
    value = data.draw(strategy)
    ds = penstock.create("memory://", {"n": int})
    ds.append({"n": range(3)})
    ds.add_column("x", kind, fill=value)
    ds.append([{"n": 3}, {"n": 4, "x": value}])
    ds.commit()
    assert same(column(ds, "x"), [value] * 5)


@pytest.mark.parametrize(
    "kind",
    [
        Tensor("float32", (2,)),
        Tensor("bfloat16"),
        Tensor("complex64", (None,)),
        Tensor("int8", (0,)),
        Boxes(),
        Text(),
        Bytes(),
        Json(),
        Label(("a",)),
        Image(),
        Image(shape=(2, 2, 3)),
        List(Boxes()),
        Struct({"a": Boxes(), "b": Tensor("bool", (2,))}),
    ],
    ids=str,
)
def test_a_nullable_column_of_any_kind_is_null_in_every_row(kind: Kind) -> None:
    ds = sparse_table()
    ds.add_column("x", Column(kind, nullable=True))
    assert column(ds, "x") == [None] * 20
    assert ds[3]["x"] is None
    assert ds["x"][4] is None
    assert ds[::-1].to_arrow()["x"].to_pylist() == [None] * 20
    ds.append([{"n": 99, "t": "z"}])
    ds.commit()
    assert column(ds, "x") == [None] * 21


def test_a_fill_value_writes_no_data() -> None:
    store = open_store("memory://")
    sparse_table(store)
    counting = CountingStore(store)
    ds = penstock.load(counting)
    counting.reset()
    ds.add_column("x", fill=5)
    assert counting.requests.total() == 0
    ds.commit()
    assert counting.bytes["put"] + counting.bytes["create"] < 10_000
    counting.reset()
    assert column(ds.select("x"), "x") == [5] * 20
    assert not [key for key in counting.requests if key != "get"]


def test_adding_a_column_rewrites_no_files() -> None:
    store = open_store("memory://")
    ds = sparse_table(store)
    before = {item.key: item.etag for item in store.list("data/")}
    ds.add_column("x", values=LIVE)
    ds.commit()
    after = {item.key: item.etag for item in store.list("data/")}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 4  # one per fragment with live rows


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("n", {"fill": 1}, "there is a column 'n' already"),
        ("_x", {"fill": 1}, "names that begin with _"),
        ("", {"fill": 1}, "printable"),
        ("x", {}, "give its kind"),
        ("x", {"column": int}, "need a value"),
        ("x", {"fill": 1, "values": [1]}, "only one of"),
        ("x", {"values": [1, 2]}, "one value for each of the 20 rows, got 2"),
        ("x", {"values": 5}, "one value for each of the 20 rows, got int"),
        ("x", {"column": int, "values": [*range(19), "a"]}, "column 'x', row 19: strings cannot"),
        ("x", {"column": int, "values": [*range(19), None]}, "column 'x', row 19: the value is missing"),
        ("x", {"column": int, "fill": 1.5}, "column 'x', row 0: float64"),
        ("x", {"fill": object()}, "no kind fits"),
        ("x", {"column": int, "compute": lambda _: [1]}, "column 'x': .*but 1 values"),
        ("x", {"column": "quaternion", "fill": 1}, "quaternion"),
        ("x", {"fill": "y" * 100_000}, "too large"),
    ],
)
def test_an_invalid_column_raises_and_leaves_no_objects(name: str, options: Any, reason: str) -> None:
    ds = sparse_table()
    before = [item.key for item in ds._session.store.list()]
    with pytest.raises(InvalidInputError, match=reason):
        ds.add_column(name, **options)
    assert [item.key for item in ds._session.store.list()] == before
    assert (ds.schema.names, ds.summary().has_changes) == (["n", "t"], False)


def test_a_compute_function_that_fails_leaves_nothing_but_finished_parts() -> None:
    ds = sparse_table()
    before = [item.key for item in ds._session.store.list()]
    calls = []

    def compute(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 3:
            raise RuntimeError("compute failed")
        return batch["n"]

    with pytest.raises(RuntimeError, match="compute failed"):
        ds.add_column("x", compute=compute)
    left = [item.key for item in ds._session.store.list() if not item.key.startswith("ingest/waiting/")]
    assert left == before
    assert not ds.summary().has_changes


def test_missing_inputs_are_named() -> None:
    with pytest.raises(NotFoundError, match="no column 'z'"):
        sparse_table().add_column("x", compute=lambda batch: batch["z"], inputs=["z"])


def test_a_column_of_an_empty_table_needs_no_values() -> None:
    ds = penstock.create("memory://", {"n": int})
    ds.add_column("x", str)
    ds.add_column("y", str, compute=lambda batch: batch["n"])
    ds.append({"n": [1], "x": ["a"], "y": ["b"]})
    with pytest.raises(InvalidInputError, match="column 'x', row 0: no value was given"):
        ds.append({"n": [1], "y": ["b"]})
    assert_same(list(ds), [{"n": 1, "x": "a", "y": "b"}])


@pytest.mark.parametrize(
    "between", [lambda _: None, lambda ds: ds.commit(), lambda ds: ds.append({"n": [9], "t": ["9"]})]
)
def test_a_dropped_column_never_shows_in_a_new_one_of_its_name(between: Any) -> None:
    ds = penstock.create("memory://", {"n": int, "t": str, "x": Column(Tensor("int64"), nullable=True)})
    ds.append({"n": [1, 2], "t": ["a", "b"], "x": [5, 6]})
    ds.commit()
    ds.drop_column("x")
    between(ds)
    rows = len(ds)
    ds.add_column("x", Column(Tensor("int64"), nullable=True))
    assert column(ds, "x") == [None] * rows
    ds.drop_column("x")
    ds.add_column("x", Column(Tensor("int64"), nullable=True), fill=8)
    ds.update(positions=[0], data={"x": 9})
    ds.commit()
    assert column(penstock.load(ds._session.store), "x") == [9] + [8] * (rows - 1)
    assert column(penstock.load(ds._session.store, version=1), "x") == [5, 6]


def test_column_names_can_be_swapped() -> None:
    ds = penstock.create("memory://", {"a": int, "b": str, "c": float})
    ds.append({"a": [1], "b": ["b"], "c": [1.5]})
    ds.commit()
    for old, new in (("a", "x"), ("b", "a"), ("c", "b"), ("x", "c"), ("c", "d"), ("d", "c")):
        ds.rename_column(old, new)
    assert list(ds) == [{"c": 1, "a": "b", "b": 1.5}]
    ds.append({"a": ["B"], "b": [2.5], "c": [2]})
    ds.commit()
    assert list(penstock.load(ds._session.store)) == [{"c": 1, "a": "b", "b": 1.5}, {"c": 2, "a": "B", "b": 2.5}]
    assert list(penstock.load(ds._session.store, version=1)) == [{"a": 1, "b": "b", "c": 1.5}]


@pytest.mark.parametrize(
    ("old", "new", "error", "reason"),
    [
        ("n", "t", InvalidInputError, "there is a column 't' already"),
        ("n", "n", InvalidInputError, "already"),
        ("z", "y", NotFoundError, "no column 'z'"),
        ("n", "_n", InvalidInputError, "begin with _"),
        ("n", "", InvalidInputError, "printable"),
    ],
)
def test_an_invalid_rename_raises(old: str, new: str, error: type[Exception], reason: str) -> None:
    ds = sparse_table()
    with pytest.raises(error, match=reason):
        ds.rename_column(old, new)
    assert (ds.schema.names, ds.summary().has_changes) == (["n", "t"], False)


def test_a_column_cannot_take_the_name_of_a_mask() -> None:
    ds = penstock.create("memory://", {"x": Column(Tensor("int64"), nullable=True), "y": str})
    ds.append({"x": [1, None], "y": ["a", "b"]})
    with pytest.raises(InvalidInputError, match="x_mask"):
        ds.rename_column("y", "x_mask")
    with pytest.raises(InvalidInputError, match="x_mask"):
        ds.add_column("x_mask", fill=1)
    assert ds.schema.names == ["x", "y"]
    assert ds.to_numpy()["x_mask"].tolist() == [True, False]  # type: ignore[union-attr]


def test_dropping_a_missing_column_raises() -> None:
    with pytest.raises(NotFoundError, match="no column 'z'; the table has n, t"):
        sparse_table().drop_column("z")


def test_an_open_version_keeps_its_column_names() -> None:
    store = open_store("memory://")
    ds = sparse_table(store)
    old, view = penstock.load(store), penstock.load(store)[:2]
    ds.rename_column("n", "m")
    ds.drop_column("t")
    ds.add_column("t", fill=0)
    ds.commit()
    assert (old.schema.names, column(old[:2], "t")) == (["n", "t"], ["1", "2"])
    assert list(view) == [{"n": 1, "t": "1"}, {"n": 2, "t": "2"}]
    assert column(penstock.load(store, version=2), "n") == LIVE
    old.checkout()
    assert list(old[:1]) == [{"m": 1, "t": 0}]
    with pytest.raises(InvalidInputError, match="opened read-only"):
        penstock.load(store, version=2).drop_column("n")


def test_work_grows_with_the_number_of_columns_and_not_with_its_square() -> None:
    """Eight times the columns make about eight times the calls; a loop over columns inside another makes 64 times."""
    few, many = _calls_by_step(200), _calls_by_step(1600)
    assert {step: many[step] / few[step] for step in few if many[step] > 12 * few[step]} == {}


def _calls_by_step(columns: int) -> dict[str, int]:
    """The number of function calls of each operation on a table of so many columns."""
    store = open_store("memory://")
    ds = penstock.create(store, {f"c{n}": int for n in range(columns)})
    rows = {f"c{n}": [n, n] for n in range(columns)}
    ds.append(rows)
    ds.commit()
    last = f"c{columns - 1}"
    steps: dict[str, Callable[[], Any]] = {
        "create": lambda: penstock.create("memory://", {f"c{n}": int for n in range(columns)}),
        "load": lambda: penstock.load(store),
        "append": lambda: penstock.load(store).append(rows),
        "row": lambda: ds[0],
        "columns": lambda: ds.to_numpy(),
        "arrow": lambda: ds.to_arrow(),
        "batches": lambda: list(ds.batches()),
        "describe": lambda: (repr(ds), str(ds.schema)),
        "rename": lambda: ds.rename_column(last, "x"),
        "update": lambda: ds.update(positions=[0], data={name: [1] for name in ds.schema.names}),
        "commit": lambda: ds.commit(),
        "diff": lambda: ds.diff(1),
    }
    found = {}
    for step, act in steps.items():
        profile = cProfile.Profile()
        profile.runcall(act)
        found[step] = sum(entry.callcount for entry in profile.getstats())
    return found
