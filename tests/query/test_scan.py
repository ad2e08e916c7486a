"""A table as query engines see it: pushed projections and filters are exact and read little."""

from typing import Any

import datafusion
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import InvalidInputError
from penstock.format import Column
from penstock.format.kinds import Bytes, Tensor, Text
from penstock.query import Derived, Relation, ScanTrace, TableScan, as_dataset, explain_sql, run_sql, udf
from penstock.query.scan import ROW, handle_column, handle_member
from penstock.storage import open_store
from penstock.testing import CountingStore
from tests.query.tables import as_table, in_memory, make_table, relation

ROWS = 2000


@pytest.fixture(scope="module")
def ds() -> Any:
    return make_table()


@pytest.fixture(scope="module")
def counted() -> Any:
    """A table with a heavy column and one whose values ascend, and the store that counts its bytes."""
    store = CountingStore(open_store("memory://"))
    made = penstock.create(
        store,
        {
            "id": Column(Tensor("int64"), page_bytes=1024),
            "reward": Column(Tensor("float32"), page_bytes=1000),
            "image": Column(Bytes(), page_bytes=20000),
            "text": Column(Text(), page_bytes=2000),
        },
    )
    rng = np.random.default_rng(1)
    for start in (0, ROWS // 2):
        count = ROWS // 2
        made.append(
            {
                "id": np.arange(start, start + count),
                "reward": rng.random(count).astype(np.float32),
                "image": [rng.bytes(5000) for _ in range(count)],
                "text": [f"row {row}" for row in range(count)],
            }
        )
        made.commit()
    return made, store


FILTERS = st.sampled_from(
    [
        None,
        pc.field("label") == 2,
        pc.field("id") > 250,
        (pc.field("reward") < 0.4) & (pc.field("camera") == "cam1"),
        pc.field("camera").is_null() | pc.field("flag"),
        ~(pc.field("half") < 0.5),
        pc.field("added").isin([2, 4, 600]),
        pc.field("pos", "x") == 2.0,
        pc.field("id") > 10_000,
    ]
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    condition=FILTERS,
    columns=st.sampled_from([None, ["id"], ["blob", "emb"], ["reward", "tags", "half"], []]),
    rows=st.sampled_from(["all", "some", "shuffled"]),
)
def test_a_scan_is_exact(ds: Any, condition: Any, columns: Any, rows: str) -> None:
    live = len(ds)
    shuffled = np.random.default_rng(3).integers(0, live, 150)
    given_rows: Any = {"all": range(live), "some": range(3, live - 5, 4), "shuffled": shuffled}[rows]
    source = relation(ds, given_rows)
    scan = TableScan(source)
    expected = in_memory(source).drop_columns(["_row_id"])
    expected = expected if condition is None else expected.filter(condition)
    assert scan.count_rows(condition) == expected.num_rows
    found = scan.to_table(columns, condition)
    expected = expected if columns is None else expected.select(columns)
    if columns != []:
        assert found.to_pylist() == expected.to_pylist()
        assert scan.head(5, columns, condition).to_pylist() == expected.slice(0, 5).to_pylist()


def test_virtual_and_derived_columns(ds: Any) -> None:
    source = relation(ds, np.array([7, 2, 2, 90]))
    double = Derived(pa.int64(), ("id",), lambda positions: pa.array(positions * 2))
    scan = TableScan(source, name="r", derived={"double": double}, handles=["blob"])
    found = scan.to_table([ROW, "_row_id", handle_column("blob"), "double"])
    assert found[ROW].to_pylist() == [0, 1, 2, 3]
    assert found["double"].to_pylist() == [14, 4, 4, 180]
    assert found["_row_id"].to_pylist() == in_memory(source)["_row_id"].to_pylist()
    assert found[handle_column("blob")].to_pylist() == [{handle_member("", "r", "blob"): index} for index in range(4)]
    assert scan.to_table([ROW], pc.field("double") < 10)[ROW].to_pylist() == [1, 2]


def test_a_filter_on_an_unknown_column_is_refused(ds: Any) -> None:
    with pytest.raises(InvalidInputError, match="does not fit"):
        TableScan(relation(ds)).to_table(["id"], pc.field("nothing") == 1)


def test_polars_pushes_projection_and_filter(ds: Any) -> None:
    source = relation(ds)
    trace = ScanTrace()
    frame = pl.scan_pyarrow_dataset(as_dataset(TableScan(source, trace=trace)))
    question = (pl.col("label") == 2) & (pl.col("reward") > 0.3)
    found = frame.filter(question).select("id", "camera").collect()
    memory = in_memory(source)
    expected = memory.filter((pc.field("label") == 2) & (pc.field("reward") > 0.3)).select(["id", "camera"])
    assert found.rows() == [tuple(row.values()) for row in expected.to_pylist()]
    assert "blob" not in trace.of("").columns
    grouped = frame.group_by("label").agg(pl.col("id").count()).sort("label").collect()
    assert grouped["id"].sum() == memory.num_rows


def test_datafusion_pushes_projection_and_filter(ds: Any) -> None:
    source = relation(ds)
    trace = ScanTrace()
    context = datafusion.SessionContext()
    context.register_dataset("ds", as_dataset(TableScan(source, trace=trace)))
    sql = "SELECT id, camera FROM ds WHERE label = 2 AND reward > 0.3 ORDER BY id"
    found = context.sql(sql).to_arrow_table().to_pylist()
    expected = in_memory(source).filter((pc.field("label") == 2) & (pc.field("reward") > 0.3))
    assert found == expected.select(["id", "camera"]).to_pylist()
    assert "blob" not in trace.of("").columns
    assert context.sql("SELECT count(*) AS n FROM ds").to_pydict() == {"n": [len(source.rows)]}


def read_bytes(store: CountingStore) -> int:
    return sum(store.bytes[verb] for verb in ("get", "get_parts", "read_into"))


def test_the_best_rows_are_found_without_their_heavy_columns(counted: Any) -> None:
    made, store = counted
    source = {"ds": relation(made)}
    store.reset()
    result = run_sql("SELECT * FROM ds ORDER BY reward LIMIT 5", source)
    assert len(result) == 5
    assert read_bytes(store) < ROWS * 40, "a light column"
    store.reset()
    joined = run_sql("SELECT a.image, b.id FROM ds a JOIN ds b ON a.id = b.id + 1 WHERE b.id < 3", source)
    assert read_bytes(store) < ROWS * 80
    assert as_table(joined, source)["image"].to_pylist() == in_memory(source["ds"])["image"].slice(1, 3).to_pylist()


def test_columns_are_computed_for_the_rows_of_the_answer_only(counted: Any) -> None:
    made, store = counted
    source = {"ds": relation(made)}
    seen: list[int] = []

    @udf(returns="int64")
    def size(image: pa.Array) -> list[int]:
        seen.append(len(image))
        return [len(each) for each in image.to_pylist()]

    sql = (
        "SELECT id + 1 AS next, size(image) AS a, *, octet_length(image) AS b FROM ds"
        " WHERE id > 9 ORDER BY reward, next LIMIT 5"
    )
    store.reset()
    found = run_sql(sql, source, functions=[size])
    assert sum(seen) == 5
    assert read_bytes(store) < ROWS * 40 + 5 * 20_000 * 2
    table = as_table(found, source)
    assert table.column_names == ["next", "a", "id", "reward", "image", "text", "b"]
    best = in_memory(source["ds"]).filter(pc.field("id") > 9).sort_by("reward").slice(0, 5)
    assert table["id"].to_pylist() == best["id"].to_pylist()
    assert table["next"].to_pylist() == [each + 1 for each in best["id"].to_pylist()]
    assert table["a"].to_pylist() == table["b"].to_pylist() == [5000] * 5


@pytest.mark.parametrize(
    ("sql", "exact"),
    [
        ("SELECT * FROM ds WHERE reward < 0.5", True),
        ("SELECT count(*), sum(id) FROM ds", True),
        ("SELECT avg(octet_length(image)) FROM ds", True),
        ("SELECT text, count(*) FROM ds WHERE id >= 0 GROUP BY text", True),
        ("SELECT id + 1 AS x FROM ds WHERE text = 'row 7'", False),
        ("SELECT * FROM ds a JOIN ds b USING (id)", True),
    ],
)
def test_bytes_are_those_counted_at_the_store(counted: Any, sql: str, exact: bool) -> None:
    made, store = counted
    source = {"ds": relation(made)}
    planned, analyzed = explain_sql(sql, source), explain_sql(sql, source, analyze=True)
    store.reset()
    result = run_sql(sql, source)
    read = read_bytes(store)
    assert analyzed.bytes_to_read == read
    assert planned.bytes_to_read >= read
    if exact:
        assert planned.bytes_to_read - read <= 20_000, "a page"
    assert analyzed.result_rows == len(result)


def test_an_explanation_reads_no_rows(counted: Any) -> None:
    made, store = counted
    source = {"ds": relation(made)}
    store.reset()
    text = str(explain_sql("SELECT id, octet_length(image) FROM ds WHERE id < 10", source))
    assert read_bytes(store) == 0
    assert "at most" in text
    assert "ds: " in text
    assert "image" in text


def test_the_bytes_of_the_rows_of_an_answer_are_explained(counted: Any) -> None:
    made, store = counted
    source = {"ds": relation(made)}
    found = explain_sql("SELECT image FROM ds ORDER BY reward LIMIT 3", source, analyze=True)
    result = run_sql("SELECT image FROM ds ORDER BY reward LIMIT 3", source)
    assert result.rows is not None
    store.reset()
    source["ds"].reader.arrow(["image"], source["ds"].positions[result.rows])
    assert found.result_bytes == read_bytes(store)


def test_functions_of_the_user(ds: Any) -> None:
    source = {"ds": relation(ds)}

    @udf(returns="float32")
    def brightness(blob: pa.Array) -> Any:
        return [None if value is None else float(sum(value)) for value in blob.to_pylist()]

    @udf(returns="int64", name="plus")
    def add(one: pa.Array, other: pa.Array) -> Any:
        return pc.add(one, other)

    sql = (
        "SELECT id, Brightness(blob) AS b, plus(id, added) AS s FROM ds"
        " WHERE brightness(blob) > 20 ORDER BY b, id LIMIT 5"
    )
    found = as_table(run_sql(sql, source, functions=[brightness, add]), source)
    memory = in_memory(source["ds"]).to_pylist()
    expected = sorted((float(sum(row["blob"])), row["id"], row["id"] + row["added"]) for row in memory)
    expected = [row for row in expected if row[0] > 20][:5]
    assert [(row["b"], row["id"], row["s"]) for row in found.to_pylist()] == expected
    assert brightness(pa.array([b"\1\2"])) == [3.0]


def test_a_failing_function_is_named(ds: Any) -> None:
    source = {"ds": relation(ds)}
    broken = udf(lambda _: 1 / 0, returns="int64", name="broken")
    short = udf(lambda _: [1], returns="int64", name="short")
    for function, message in (
        (broken, "the function broken failed: ZeroDivisionError"),
        (short, "short returned 1 values"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            run_sql(f"SELECT {function.name}(id) FROM ds", source, functions=[function])


def test_labels_json_and_shapes(ds: Any) -> None:
    source = {"ds": relation(ds)}
    memory = in_memory(source["ds"]).to_pylist()
    sql = "SELECT id, label_name(label) AS name FROM ds WHERE label = 'push' OR label IN ('lift', ?) ORDER BY id"
    found = as_table(run_sql(sql, source, ["pull"]), source).to_pylist()
    names = ("grasp", "push", "pull", "lift")
    assert found == [{"id": r["id"], "name": names[r["label"]]} for r in memory if r["label"] > 0]
    sql = "SELECT id FROM ds WHERE meta.camera.side = 'left' AND ds.meta.n::INT < 20"
    sides = [r["id"] for r in memory if '"left"' in r["meta"] and int(r["meta"].split('"n":')[1][:-1]) < 20]
    assert as_table(run_sql(sql, source), source)["id"].to_pylist() == sides
    found = as_table(run_sql("SELECT shape(big) AS s, shape(emb)[1] AS n FROM ds LIMIT 1", source), source).to_pylist()
    assert found == [{"s": [100], "n": 4}]


def test_a_relation_of_other_columns_hides_the_rest(ds: Any) -> None:
    whole = relation(ds)
    some = {"ds": Relation(whole.reader, ("id", "reward"), whole.rows)}
    assert [each.name for each in run_sql("SELECT * FROM ds", some).columns] == ["id", "reward"]
    with pytest.raises(penstock.errors.NotFoundError, match="label"):
        run_sql("SELECT label FROM ds", some)
