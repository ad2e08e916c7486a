"""Updates: one value for all rows, one per row, or a function; rows by position or expression."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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

field = pc.field


def table_of(kind: Any, values: Any) -> Dataset:
    ds = penstock.create("memory://", {"x": kind})
    ds.append({"x": values})
    return ds


def column(ds: penstock.View, name: str = "x") -> list[Any]:
    return [row[name] for row in ds]


image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
SINGLE_VALUES: list[tuple[Kind, Any, Any]] = [
    (Tensor("int64"), 0, 5),
    (Tensor("int64"), 0, np.int8(5)),
    (Tensor("int64"), 0, np.array(5)),
    (Tensor("int64", (2,)), [0, 0], [1, 2]),
    (Tensor("int64", (2,)), [0, 0], np.array([1, 2])),
    (Tensor("int64", (2, 2)), [[0, 0], [0, 0]], [[1, 2], [3, 4]]),
    (Tensor("int64", (None,)), [0], [1, 2, 3]),
    (Tensor("int64", (None,)), [0], []),
    (Boxes(), [], [[1, 2, 3, 4]]),
    (Boxes(), [[1, 2, 3, 4]], []),
    (Tensor("datetime64[s]"), np.datetime64(0, "s"), datetime(2020, 1, 1)),
    (Text(), "", "abc"),
    (Bytes(), b"", b"abc"),
    (Json(), {}, {"a": [1]}),
    (Label(("a", "b")), "a", "b"),
    (Struct({"a": Text()}), {"a": "x"}, {"a": "y"}),
    (Image(), image, image + 1),
    (Image(shape=(2, 2, 3)), image, image + 1),
]


@pytest.mark.parametrize(("kind", "before", "value"), SINGLE_VALUES, ids=lambda item: str(item)[:30])
def test_one_value_is_broadcast_to_all_rows(kind: Kind, before: Any, value: Any) -> None:
    ds = table_of(kind, [before] * 4)
    ds.commit()
    assert ds.update(positions=[0, 2, 3], data={"x": value}) == 3
    expected = table_of(kind, [value, before, value, value])
    assert same(column(ds), column(expected))
    ds.commit()
    assert same(column(penstock.load(ds._session.store)), column(expected))


@pytest.mark.parametrize(("kind", "before", "value"), SINGLE_VALUES, ids=lambda item: str(item)[:30])
def test_a_list_has_one_value_per_row(kind: Kind, before: Any, value: Any) -> None:
    ds = table_of(kind, [before] * 4)
    assert ds.update(positions=[3, 0], data={"x": [value, before]}) == 2
    assert same(column(ds), column(table_of(kind, [before, before, before, value])))
    ds.update(positions=[1], data={"x": [value]})
    assert same(column(ds), column(table_of(kind, [before, value, before, value])))


def test_a_stacked_array_of_images_has_one_per_row() -> None:
    ds = table_of(Image(), [image] * 3)
    ds.update(positions=[0, 2], data={"x": np.stack([image + 1, image + 2])})
    assert same(column(ds), [image + 1, image, image + 2])


def test_a_list_column_takes_one_list_per_row() -> None:
    ds = table_of(List(Text()), [["a"], [], ["b"]])
    ds.update(positions=[0, 1], data={"x": [["c", "d"], []]})
    assert column(ds) == [["c", "d"], [], ["b"]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), any_kind(), st.booleans())
def test_any_rows_can_be_updated_to_any_values(data: st.DataObject, drawn: tuple[Kind, Any], tiny: bool) -> None:
    kind, strategy = drawn
    sizes: Any = {"page_bytes": 16, "file_bytes": 32} if tiny else {}
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=6))
    cut = data.draw(st.integers(0, len(values)))
    ds = penstock.create("memory://", {"n": int, "x": Column(kind, nullable=True, **sizes)})
    for part in (values[:cut], values[cut:]):
        ds.append({"n": range(len(part)), "x": part})
    where = data.draw(st.lists(st.integers(0, len(values) - 1), unique=True))
    new = data.draw(st.lists(st.none() | strategy, min_size=len(where), max_size=len(where)))
    assert ds.update(positions=where, data=lambda _: {"x": new}) == len(where)
    for position, value in zip(where, new, strict=True):
        values[position] = value
    assert same(column(ds), values)


def test_an_update_function_gets_the_batch_and_returns_values() -> None:
    ds = penstock.create("memory://", {"n": int, "t": str, "m": Column(Tensor("int64"), nullable=True)})
    ds.append({"n": range(6), "t": list("abcdef"), "m": [None, 1] * 3})
    seen: list[Any] = []

    def double(batch: Any) -> Any:
        seen.append(batch)
        return {"n": batch["n"] * 2, "t": [text.upper() for text in batch["t"]]}

    assert ds.update(positions=[4, 1], data=double) == 2
    assert len(seen) == 1
    assert (seen[0]["n"].tolist(), seen[0]["m_mask"].tolist()) == ([4, 1], [False, True])
    assert column(ds, "n") == [0, 2, 2, 3, 8, 5]
    assert column(ds, "t") == ["a", "B", "c", "d", "E", "f"]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (2, [2]),
        (-1, [5]),
        (np.int8(3), [3]),
        (slice(1, 5, 2), [1, 3]),
        ([5, 0], [5, 0]),
        (np.array([True, False, False, False, True, False]), [0, 4]),
        ([], []),
        (slice(3, 3), []),
        (field("x") >= 40, [4, 5]),
        (field("x") > 1000, []),
    ],
    ids=str,
)
def test_rows_are_selected_by_position_slice_mask_or_expression(where: Any, rows: list[int]) -> None:
    chosen = {"where": where} if isinstance(where, pc.Expression | np.ndarray) else {"positions": where}
    ds = table_of(int, [0, 10, 20, 30, 40, 50])
    ds.commit()
    assert ds.update(**chosen, data={"x": -1}) == len(rows)
    assert column(ds) == [-1 if number in rows else 10 * number for number in range(6)]
    assert ds.summary().has_changes == bool(rows)
    ds.rollback()
    assert ds.delete(**chosen) == len(rows)
    assert column(ds) == [10 * number for number in range(6) if number not in rows]


@pytest.mark.parametrize(
    ("where", "values", "error", "reason"),
    [
        ([0, 0], {"x": 1}, InvalidInputError, "more than once"),
        ([9], {"x": 1}, IndexError, "row 9 is out of range: there are 3 rows"),
        ([0], {"y": 1}, NotFoundError, "no column 'y'"),
        ([0, 1], {"x": [1]}, InvalidInputError, "column 'x': 2 rows, but 1 values"),
        ([0, 1], {"x": [1, "a"]}, InvalidInputError, "column 'x', row 1: strings cannot"),
        ([0, 1], {"x": None}, InvalidInputError, "column 'x', row 0: the value is missing"),
        ([0, 1], {"x": [1, None]}, InvalidInputError, "column 'x', row 1: the value is missing"),
        ([0], {"x": 1.5}, InvalidInputError, "column 'x', row 0: float64"),
        ([0], lambda _: {"x": [1, 2]}, InvalidInputError, "1 rows, but 2 values"),
        (1.5, {"x": 1}, InvalidInputError, "rows are selected by integers"),
    ],
)
def test_an_invalid_update_raises_and_changes_nothing(
    where: Any, values: Any, error: type[Exception], reason: str
) -> None:
    ds = table_of(int, [1, 2, 3])
    ds.commit()
    before = [item.key for item in ds._session.store.list()]
    with pytest.raises(error, match=reason):
        ds.update(positions=where, data=values)
    assert column(ds) == [1, 2, 3]
    assert not ds.summary().has_changes
    assert [item.key for item in ds._session.store.list()] == before


def test_an_update_of_no_columns_is_no_change() -> None:
    ds = table_of(int, [1, 2])
    ds.commit()
    assert ds.update(positions=[0], data={}) == 0
    assert not ds.summary().has_changes


def test_filled_and_null_columns_can_be_updated() -> None:
    ds = penstock.create("memory://", {"n": int})
    for part in ([0, 1], [2, 3], [4]):
        ds.append({"n": part})
    ds.add_column("f", fill=7)
    ds.add_column("e", Column(Boxes(), nullable=True))
    ds.commit()
    ds.update(positions=[1, 2], data={"f": [10, 20], "e": [[[1, 2, 3, 4]], None]})
    ds.commit()
    assert column(ds, "f") == [7, 10, 20, 7, 7]
    assert_same(column(ds, "e"), [None, [[1, 2, 3, 4]], None, None, None])
    assert column(ds[field("f") == 7], "n") == [0, 3, 4]
    ds.append({"n": [5]})
    assert column(ds, "f")[-1] == 7


def test_an_update_rewrites_only_files_with_updated_rows() -> None:
    store = open_store("memory://")
    ds = penstock.create(
        store,
        {"n": int, "x": Column(Tensor("uint8", (1000,)), page_bytes=10_000, file_bytes=20_000)},
    )
    ds.append({"n": range(100), "x": np.zeros((100, 1000), np.uint8)})
    ds.commit()
    counting = CountingStore(store)
    ds = penstock.load(counting)
    ds.update(positions=[5, 7], data={"x": np.ones(1000, np.uint8)})
    assert 20_000 < counting.bytes["put"] < 25_000
    counting.reset()
    ds.update(positions=[5], data={"n": 50})
    assert counting.bytes["put"] < 5000


@pytest.fixture(scope="module")
def every_kind() -> Dataset:
    ds = penstock.create(
        "memory://",
        {
            "id": int,
            "i8": Column(Tensor("int8"), nullable=True),
            "u64": "uint64",
            "f16": "float16",
            "f64": "float64",
            "bf16": Column(Tensor("bfloat16"), nullable=True),
            "f8": "float8_e4m3fn",
            "flag": Column(Tensor("bool"), nullable=True),
            "time": "datetime64[us]",
            "length": "timedelta64[s]",
            "text": Column(Text(), nullable=True),
            "label": Label(("x", "y")),
            "vector": Tensor("float32", (2,)),
        },
    )
    numbers = np.arange(5)
    for part in (numbers[:2], numbers[2:]):
        ds.append(
            {
                "id": part,
                "i8": [None if number == 4 else number for number in part],
                "u64": part,
                "f16": part / 2,
                "f64": part / 2,
                "bf16": [None if number == 4 else -number / 2 for number in part],
                "f8": part / 2,
                "flag": [None if number == 4 else number % 2 == 0 for number in part],
                "time": part.astype("M8[us]"),
                "length": part.astype("m8[s]"),
                "text": [None if number == 4 else "abcde"[number] for number in part],
                "label": part % 2,
                "vector": np.zeros((len(part), 2)),
            }
        )
    return ds


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        (field("i8") > 1, [2, 3]),
        (field("i8").is_null(), [4]),
        (field("u64") == pa.scalar(3, pa.uint64()), [3]),
        (field("f16") > 0.5, [2, 3, 4]),
        (field("f64") <= 0.5, [0, 1]),
        (field("bf16") < -0.5, [2, 3]),
        (field("bf16").is_null(), [4]),
        (field("f8") == 1.5, [3]),
        (field("flag"), [0, 2]),
        (~field("flag"), [1, 3]),
        (field("flag") == True, [0, 2]),  # noqa: E712
        (field("time") > datetime(1970, 1, 1, microsecond=2), [3, 4]),
        (field("length") <= timedelta(seconds=1), [0, 1]),
        (field("text") > "b", [2, 3]),
        (field("text").isin(["a", "d"]), [0, 3]),
        (pc.match_substring(field("text"), "c"), [2]),
        (field("text").is_valid(), [0, 1, 2, 3]),
        (field("label") == 1, [1, 3]),
        ((field("i8") > 0) & (field("label") == 0), [2]),
        ((field("f64") + field("u64")) > 4, [3, 4]),
        (field("id") * 2 == field("id") + 3, [3]),
        (field(0) >= 3, [3, 4]),
        (field(1) == 2, [2]),
        (pc.scalar(True), [0, 1, 2, 3, 4]),
        (pc.scalar(False), []),
    ],
    ids=str,
)
def test_expressions_filter_every_scalar_kind(every_kind: Dataset, expression: Any, rows: list[int]) -> None:
    assert column(every_kind[expression], "id") == rows


@pytest.mark.parametrize(
    "expression",
    [
        field("z") > 1,
        field("text") > 1,
        field("vector") > 1,
        field("i8") + 1,
        field("label") == "x",
        pc.scalar(None),
        pc.match_substring_regex(field("text"), "("),
        field("id") / pc.scalar(0) > 1,
    ],
    ids=str,
)
def test_an_invalid_expression_raises(every_kind: Dataset, expression: Any) -> None:
    for use in (every_kind.__getitem__, every_kind.delete, lambda where: every_kind.update(where, {"id": 1})):
        with pytest.raises(InvalidInputError, match="the filter does not fit the table: "):
            use(expression)


def test_an_expression_reads_only_referenced_columns() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"n": int, "x": Tensor("uint8", (10_000,))})
    ds.append({"n": range(100), "x": np.zeros((100, 10_000), np.uint8)})
    ds.commit()
    counting = CountingStore(store)
    assert column(penstock.load(counting)[field("n") > 97].select("n"), "n") == [98, 99]
    assert counting.bytes["get"] < 20_000


def test_a_column_name_may_begin_with_a_space() -> None:
    ds = penstock.create("memory://", {" position": int, "n": int})
    ds.append({" position": [7, 8], "n": [1, 2]})
    assert column(ds[field(" position") == 8], "n") == [2]
