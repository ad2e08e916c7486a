"""Edits change the rows that were meant: views, SQL, masks, positions and row ids, before and after other edits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import penstock
from penstock import Column, Dataset, Image, Json, Label, Tensor
from penstock.errors import InvalidInputError, NotFoundError
from penstock.storage import open_store
from penstock.testing import assert_same


def table(rows: int = 10) -> Dataset:
    ds = penstock.create(open_store("memory://"), {"x": int, "reward": "float32", "text": str})
    ds.append({"x": np.arange(rows), "reward": np.arange(rows) - 5.0, "text": [f"t{n}" for n in range(rows)]})
    ds.commit()
    return ds


def xs(view: penstock.View) -> list[int]:
    found: list[int] = np.asarray(view["x"][:]).tolist()
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_an_edit_after_a_delete_changes_the_rows_that_a_query_found(commit: bool) -> None:
    ds = table()
    ds.delete("x < 3")
    if commit:
        ds.commit()
    ds.update(ds.where("x = 5"), {"text": "view"})
    ds.update(row_ids=ds.where("x = 6")["_row_id"][:], data={"text": "row id"})
    ds.update(positions=4, data={"text": "position"})
    assert {row["x"]: row["text"] for row in ds} == {
        3: "t3", 4: "t4", 5: "view", 6: "row id", 7: "position", 8: "t8", 9: "t9",
    }  # fmt: skip
    assert ds.delete(ds.query("SELECT x FROM ds WHERE reward > 0 ORDER BY reward DESC LIMIT 2")) == 2
    assert xs(ds) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("rows", [[3], 3, np.int64(3), np.array([3]), range(2), slice(0, 2), []], ids=repr)
def test_bare_integers_say_which_word_to_add(rows: Any) -> None:
    ds = table()
    for edit in (
        lambda: ds.update(rows, {"x": 1}),
        lambda: ds.delete(rows),
        lambda: ds.release(rows),
        lambda: ds.quarantine(rows if np.size(rows) else np.array(rows), reason="bad"),  # [] has no bad samples
    ):
        with pytest.raises(InvalidInputError, match=r"row_ids=… for row ids.* positions=… for places"):
            edit()
    assert not ds.summary().has_changes
    assert ds.version == "main@1"


def test_a_view_of_an_older_version_means_its_rows() -> None:
    ds = table()
    view = ds.where("x >= 4").order_by("x DESC").limit(3)
    ds.delete("x < 2")
    ds.commit()
    penstock.compact(ds._session.store)
    ds.checkout()
    assert ds.update(view, {"text": ["nine", "eight", "seven"]}) == 3
    assert [row["text"] for row in ds] == ["t2", "t3", "t4", "t5", "t6", "seven", "eight", "nine"]
    computed = ds.query("SELECT x, reward * 2 AS twice FROM ds WHERE x = 2")
    assert ds.delete(computed) == 1
    assert ds.delete(penstock.load(ds._session.store).where("x = 3")) == 1
    assert xs(ds) == [4, 5, 6, 7, 8, 9]


def test_a_row_of_a_view_that_was_deleted_since_is_named() -> None:
    ds = table()
    view = ds.where("x IN (4, 6, 8)")
    ds.delete("x = 6")
    edits: list[Callable[[], int]] = [
        lambda: ds.update(view, {"text": "new"}),
        lambda: ds.delete(view),
        lambda: ds.delete(row_ids=[4, 6]),
    ]
    for edit in edits:
        with pytest.raises(NotFoundError, match="no row with id 6 in this version"):
            edit()
    assert xs(ds) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert "new" not in [row["text"] for row in ds]


def test_a_view_of_another_table_is_refused() -> None:
    ds, other = table(), table()
    counted = ds.query("SELECT count(*) AS n FROM ds GROUP BY x % 2")
    for view in (other, other.where("x = 1"), counted):
        with pytest.raises(InvalidInputError, match="another table"):
            ds.delete(view)
    assert len(ds) == 10


def test_conditions_see_staged_rows() -> None:
    ds = table()
    ds.append({"x": [100, 101], "reward": [-50.0, 50.0], "text": ["staged", "staged"]})
    assert ds.update("text = 'staged'", {"x": [200, 201]}) == 2
    assert ds.update(pc.field("x") == 200, {"text": "first"}) == 1
    mask = np.asarray(ds["x"][:]) == 201
    assert ds.update(mask, {"text": "second"}) == 1
    assert ds.update("x >= 200", values={"reward": "x"}) == 2
    assert [(row["x"], row["reward"], row["text"]) for row in ds[-2:]] == [(200, 200, "first"), (201, 201, "second")]
    assert ds.delete(ds.where("x = 200")) == 1
    ds.commit()
    assert xs(ds)[-2:] == [9, 201]


def test_values_are_sql_expressions_over_each_row() -> None:
    kinds = {
        "x": int, "reward": "float32", "text": str, "label": Label(("cat", "dog")), "meta": Json(),
        "vector": Tensor("float32", (2,)), "when": Tensor("datetime64[us]"), "maybe": Column("float16", nullable=True),
    }  # fmt: skip
    ds = penstock.create("memory://", kinds)
    start = np.datetime64("2024-01-01", "us")
    ds.append(
        [
            {"x": n, "reward": n - 1.0, "text": f"t{n}", "label": 0, "meta": {"n": n}, "vector": [n, n], "when": start,
             "maybe": 1.0}
            for n in range(3)
        ]
    )  # fmt: skip
    assert ds.update(where="reward < 0", values={"reward": "0"}) == 1
    assert [row["reward"] for row in ds] == [0, 0, 1]
    new = {
        "x": "x * 10 + meta.n::INT", "reward": "reward / 2.5", "text": "upper(text) || '!'", "label": "'dog'",
        "meta": "'{\"a\": [1]}'", "vector": "[x, 1]", "when": "\"when\" + INTERVAL 1 DAY", "maybe": "NULL",
    }  # fmt: skip
    assert ds.update(positions=[2], values=new) == 1
    expected = {
        "x": 22, "reward": np.float32(0.4), "text": "T2!", "label": 1, "meta": {"a": [1]}, "vector": [2, 1],
        "when": start + np.timedelta64(1, "D"), "maybe": None,
    }  # fmt: skip
    assert_same(ds[2], expected)
    assert ds.update(ds[::-1], values={"reward": "x", "text": "text"}) == 3
    assert [(row["reward"], row["text"]) for row in ds] == [(0, "t0"), (1, "t1"), (22, "T2!")]


@pytest.mark.parametrize(
    ("values", "error", "sentence"),
    [
        ({"x": 0}, InvalidInputError, "values.'x'. is an SQL expression.* not 0; data= takes values as they are"),
        ({"text": "a dog"}, InvalidInputError, "data= takes values as they are.*parsed"),
        ({"text": "dog"}, NotFoundError, "data= takes values as they are.*no column 'dog'"),
        ({"x": "0) + (1"}, InvalidInputError, "values.'x'. is no SQL expression"),
        ({"x": "count(*)"}, InvalidInputError, "not expressions on single rows"),
        ({"x": "(SELECT max(x) FROM ds)"}, InvalidInputError, "sees the values of one row"),
        ({"x": "0.5"}, InvalidInputError, "column 'x', row 0: float64"),
        ({"x": "NULL"}, InvalidInputError, "column 'x', row 0: the value is missing"),
        ({"image": "image"}, InvalidInputError, "column 'image' holds image.*data="),
        ({"text": "image"}, InvalidInputError, "media or large tensors; give values with data="),
        ({"nothing": "0"}, NotFoundError, "no column 'nothing'"),
    ],
)  # fmt: skip
def test_an_expression_that_gives_no_value_is_named(values: Any, error: type[Exception], sentence: str) -> None:
    ds = table()
    ds.add_column("image", Image(), fill=np.zeros((2, 2, 3), np.uint8))
    ds.commit()
    with pytest.raises(error, match=f"(?s){sentence}"):
        ds.update("x > 3", values=values)
    assert not ds.summary().has_changes


def test_rows_and_values_are_given_in_one_way() -> None:
    ds = table()
    choices: list[dict[str, Any]] = [{}, {"where": "x = 1", "positions": 1}, {"positions": 1, "row_ids": 1}]
    for chosen in choices:
        with pytest.raises(InvalidInputError, match="choose the rows in one way"):
            ds.update(**chosen, data={"x": 1})
        with pytest.raises(InvalidInputError, match="choose the rows in one way"):
            ds.delete(**chosen)
    values: list[dict[str, Any]] = [{}, {"data": {"x": 1}, "values": {"x": "1"}}]
    for new in values:
        with pytest.raises(InvalidInputError, match="give the new values once"):
            ds.update("x = 1", **new)
    wrong: Any
    for wrong in (True, {1}, 1.5, [[1], [2, 3]], np.ones((2, 2), bool), object()):
        with pytest.raises(InvalidInputError, match="rows are chosen by a view, a condition in SQL, a mask"):
            ds.delete(wrong)
    with pytest.raises(InvalidInputError, match="a mask needs one entry per row: 10 rows"):
        ds.delete([True, False])


def test_rows_are_quarantined_and_released_as_they_are_edited() -> None:
    ds = table()
    ds.delete("x < 2")
    ds.commit()
    ids = dict(zip(xs(ds), np.asarray(ds["_row_id"][:]).tolist(), strict=True))
    ds.quarantine("x = 3", reason="sql")
    ds.quarantine(ds.where("x = 4"), reason="view")
    ds.quarantine(positions=[3], reason="position")
    ds.quarantine(row_ids={ids[6]: "row id"})
    ds.quarantine(np.asarray(ds["x"][:]) == 7, reason="mask")
    assert ds.quarantined() == {ids[3]: "sql", ids[4]: "view", ids[5]: "position", ids[6]: "row id", ids[7]: "mask"}
    ds.release("x = 3")
    ds.release(ds.where("x = 4"))
    ds.release(positions=3)
    ds.release(row_ids=ids[6])
    assert ds.quarantined() == {ids[7]: "mask"}
    with pytest.raises(NotFoundError, match=f"row {ids[2]} is not quarantined"):
        ds.release("x IN (2, 7)")
