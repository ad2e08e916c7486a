"""Questions to views: SQL, filters, orders, samples, joins, data frames; each answer is a view that trains."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Image, Json, Label, Text
from penstock.errors import InvalidInputError, NotFoundError
from penstock.storage import open_store
from penstock.testing import CountingStore

LABELS = ("cat", "dog", "bird")
COLUMNS: dict[str, Any] = {
    "n": int,
    "label": Label(LABELS),
    "reward": "float32",
    "caption": Text(),
    "meta": Json(),
    "image": Image("png"),
}


def rows(start: int, count: int) -> dict[str, Any]:
    n = np.arange(start, start + count)
    return {
        "n": n,
        "label": n % 3,
        "reward": (n * 37 % 50 / 50).astype(np.float32),
        "caption": [f"caption {i}" for i in n],
        "meta": [{"camera": "left" if i % 2 else "right"} for i in n],
        "image": [np.full((4, 4, 3), i % 256, np.uint8) for i in n],
    }


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    ds = penstock.create(tmp_path_factory.mktemp("questions") / "t", COLUMNS)
    for start in range(0, 90, 30):
        ds.append(rows(start, 30))
        ds.commit()
    ds.delete(positions=[4, 40])
    ds.commit()
    return ds


def numbers(view: penstock.View) -> list[int]:
    return [int(n) for n in view["n"][:]]


def test_where_keeps_the_columns_and_the_order(ds: penstock.Dataset) -> None:
    found = ds.where("label = 'dog' AND meta.camera = ?", ["left"])
    assert numbers(found) == [n for n in numbers(ds[:]) if n % 3 == 1 and n % 2]
    assert found.schema.names == list(COLUMNS)
    backwards = ds[::-2].select(["n", "_row_id"])
    again = backwards.where("reward > 0.5").where("n < $most", {"most": 60})
    expected = [n for n in numbers(backwards) if n * 37 % 50 > 25 and n < 60]
    assert numbers(again) == expected
    assert again["_row_id"][:].tolist() == expected
    assert numbers(ds[[5, 5, 1]].where("n = 6")) == [6, 6]
    for condition in ("true) LIMIT 3 --", "true; SELECT 1"):
        with pytest.raises(InvalidInputError):
            ds.where(condition)
    with pytest.raises(NotFoundError, match="did you mean 'reward'"):
        ds.where("rewrd > 1")


def test_orders_limits_and_samples(ds: penstock.Dataset) -> None:
    ordered = ds.order_by("label", "reward DESC")
    everything = numbers(ds[:])
    assert numbers(ordered) == sorted(everything, key=lambda n: (n % 3, -(n * 37 % 50), n))
    assert numbers(ds[::-1].order_by("label")) == sorted(sorted(everything, reverse=True), key=lambda n: n % 3)
    assert numbers(ordered.limit(3)) == numbers(ordered)[:3]
    assert len(ds.limit(1000)) == len(ds.sample(1000)) == len(ds)
    sample = numbers(ds.sample(20, seed=3))
    assert sample == sorted(sample) == numbers(ds.sample(20, seed=3))
    assert len(set(sample)) == 20
    assert sample != numbers(ds.sample(20, seed=4))
    assert numbers(ds[::-1].sample(5)) == sorted(numbers(ds[::-1].sample(5)), reverse=True)
    assert numbers(ds.limit(8).sample(3, seed=1)) == [1, 6, 8], "a sample is the same on every machine"
    for wrong in (-1, 1.5, True):
        with pytest.raises(InvalidInputError, match="whole number"):
            ds.limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="order_by needs"):
        ds.order_by()


def test_an_answer_is_rows_of_the_table_with_computed_columns(ds: penstock.Dataset) -> None:
    view = ds.query("SELECT *, reward * 2 AS twice FROM ds WHERE reward > ? ORDER BY reward DESC, n LIMIT 5", [0.5])
    expected = sorted(numbers(ds[:]), key=lambda n: (-(n * 37 % 50), n))[:5]
    assert numbers(view) == expected
    assert view.schema.names == [*COLUMNS, "twice"]
    for batch in view.numpy(batch_size=2, shuffle=True):
        assert (batch["twice"] == 2 * batch["reward"]).all()
        assert [image[0, 0, 0] for image in batch["image"]] == batch["n"].tolist()
    inner = view.query("SELECT n AS i, image AS picture, label_name(label) AS name, _row_id, _row_id AS id FROM ds")
    assert inner.to_arrow().drop_columns(["picture"]).to_pylist() == [
        {"i": n, "name": LABELS[n % 3], "_row_id": n, "id": n} for n in expected
    ]
    assert [row["picture"][0, 0, 0] for row in inner] == expected
    assert inner.where("name = 'cat'").query("SELECT count(*) AS c FROM ds")[0]["c"] == sum(
        n % 3 == 0 for n in expected
    )


def test_a_query_reads_no_image_that_is_not_streamed(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path))
    table = penstock.create(store, {"n": int, "image": "uint8[100000]"})
    table.append({"n": np.arange(64), "image": np.zeros((64, 100_000), np.uint8)})
    table.commit()
    store.reset()
    view = table.query("SELECT *, n + 1 AS m FROM ds ORDER BY n DESC LIMIT 3")
    assert numbers(view) == [63, 62, 61]
    assert store.bytes["get"] < 100_000
    assert view[0]["image"].shape == (100_000,)
    assert store.bytes["get"] < 1_000_000


def test_groups_are_a_table_in_memory_that_streams(ds: penstock.Dataset) -> None:
    view = ds.query("SELECT label_name(label) AS name, count(*) AS n, sum(n) AS s FROM ds GROUP BY ALL ORDER BY name")
    everything = numbers(ds[:])
    expected: list[dict[str, Any]] = [
        {"name": name, "n": len(mine), "s": sum(mine)}
        for name in sorted(LABELS)
        for mine in [[n for n in everything if LABELS[n % 3] == name]]
    ]
    assert view.to_arrow().to_pylist() == expected
    [batch] = view.numpy(batch_size=8)
    assert batch["s"].tolist() == [row["s"] for row in expected]
    assert view.where("n > 29")["name"][:] == [row["name"] for row in expected if row["n"] > 29]
    best = ds.query("SELECT label, first(image ORDER BY reward DESC, n) AS best FROM ds GROUP BY label ORDER BY label")
    top = [max((n for n in everything if n % 3 == label), key=lambda n: (n * 37 % 50, -n)) for label in range(3)]
    assert [row["best"][0, 0, 0] for row in best] == top
    assert ds.query("SELECT 1 AS one WHERE false").schema.names == ["one"]


def test_joins(ds: penstock.Dataset) -> None:
    names = penstock.create(open_store("memory://"), {"label": int, "word": Text(), "icon": Image("png")})
    names.append({"label": [0, 1], "word": ["one", "two"], "icon": [np.full((2, 2, 3), i, np.uint8) for i in (7, 8)]})
    few = ds.limit(6)
    joined = penstock.sql(
        "SELECT a.n, a.image, word FROM a JOIN b ON a.label = b.label WHERE n >= $n ORDER BY n",
        {"n": 1},
        a=few,
        b=names,
    )
    assert joined.to_arrow().select(["n", "word"]).to_pylist() == [
        {"n": n, "word": ("one", "two")[n % 3]} for n in numbers(few) if n % 3 < 2 and n >= 1
    ]
    assert joined._reader.store.uri == ds.uri, "each row of `a` once: images stay in their table"
    fanned = penstock.sql(
        "SELECT a.n, b.icon, a.image FROM a LEFT JOIN b ON a.label = b.label ORDER BY n", a=few, b=names
    )
    assert [None if row["icon"] is None else row["icon"][0, 0, 0] for row in fanned] == [
        (7, 8, None)[n % 3] for n in numbers(few)
    ]
    assert [row["image"][0, 0, 0] for row in fanned] == numbers(few)
    crossed = penstock.sql(
        "SELECT a.n, c.image AS other FROM a, a AS c WHERE c.n < 2 ORDER BY ALL", a=few.select(["n", "image"])
    )
    assert sorted((row["n"], row["other"][0, 0, 0]) for row in crossed) == [
        (n, m) for n in numbers(few) for m in (0, 1)
    ]
    big = penstock.create(open_store("memory://"), {"x": "uint8[100000]"})
    big.append({"x": np.zeros((30, 100_000), np.uint8)})
    assert len(penstock.sql("SELECT a.x FROM a, a AS b", a=big)) == 900, "rows of one table, which are not copied"
    with pytest.raises(InvalidInputError, match=r"memory limit of 40,000,000 bytes.* select _row_id instead"):
        penstock.sql("SELECT a.x, b.x AS y FROM a, a AS b", a=big, memory_limit="40MB")
    with pytest.raises(InvalidInputError, match="tables in SQL are datasets and views"):
        penstock.sql("SELECT 1", a=pa.table({}))


def test_functions_of_the_user(ds: penstock.Dataset) -> None:
    @penstock.udf(returns="int64")
    def doubled(values: pa.Array) -> Any:
        return np.asarray(values) * 2

    view = ds.query("SELECT n, doubled(n) AS d FROM ds WHERE doubled(n) < 10", functions=[doubled])
    assert view.to_arrow().to_pylist() == [{"n": n, "d": 2 * n} for n in (0, 1, 2, 3)]


def test_data_frames(ds: penstock.Dataset) -> None:
    view = ds[::-1].where("n < 10")
    frame = view.to_pandas()
    assert frame["n"].tolist() == numbers(view)
    assert frame["image"][0][:4] == b"\x89PNG"
    polars = pytest.importorskip("polars")
    lazy = view.to_polars()
    assert isinstance(lazy, polars.LazyFrame)
    found = lazy.filter(polars.col("reward") > 0.5).select("n", "caption").collect()
    assert found["n"].to_list() == [n for n in numbers(view) if n * 37 % 50 > 25]


@pytest.mark.parametrize(("method", "extra"), [("to_pandas", "pandas"), ("to_polars", "polars"), ("query", "query")])
def test_a_missing_package_names_its_extra(
    ds: penstock.Dataset, method: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"query": "duckdb"}.get(extra, extra), None)
    with pytest.raises(InvalidInputError, match=rf"pip install 'penstock\[{extra}\]'"):
        getattr(ds, method)(*(["SELECT 1"] if method == "query" else []))


@settings(max_examples=10)
@given(low=st.integers(0, 60), count=st.integers(1, 30), seed=st.integers(0, 3), share=st.floats(0, 0.99))
def test_an_answer_streams_and_resumes_in_a_view_that_is_asked_for_again(
    ds: penstock.Dataset, low: int, count: int, seed: int, share: float
) -> None:
    def ask() -> penstock.View:
        fresh = penstock.load(ds.uri)
        chosen = fresh.query("SELECT n, image, n * 2 AS d FROM ds WHERE n >= ? ORDER BY reward, n", [low])
        return chosen.sample(count, seed=seed)

    first, second = ask().numpy(batch_size=4, shuffle=True), ask().numpy(batch_size=4, shuffle=True)
    running = iter(first)
    seen = [next(running) for _ in range(int(share * len(first)))]
    second.load_state_dict(first.state_dict())
    batches = [*seen, *second]
    assert all((batch["d"] == 2 * batch["n"]).all() for batch in batches)
    assert sorted(int(n) for batch in batches for n in batch["n"]) == sorted(numbers(ask()))


def test_uncommitted_changes_can_be_asked_about(tmp_path: Path) -> None:
    table = penstock.create(tmp_path, {"n": int})
    table.append({"n": [3, 1, 2]})
    view = table.query("SELECT n, n + 1 AS m FROM ds WHERE n > 1 ORDER BY n")
    table.rollback()
    assert view.to_arrow().to_pylist() == [{"n": 2, "m": 3}, {"n": 3, "m": 4}]


def test_to_count_rows_reads_no_column(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path))
    table = penstock.create(store, {"image": "uint8[100000]", "n": int})
    table.append({"n": np.arange(64), "image": np.zeros((64, 100_000), np.uint8)})
    table.commit()
    store.reset()
    assert table.query("SELECT count(*) AS c FROM ds")[0]["c"] == 64
    assert len(table.query("SELECT a.n FROM ds AS a, ds AS b LIMIT 3")) == 3
    assert store.bytes["get"] < 100_000
