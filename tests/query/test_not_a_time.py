"""NaT is null: when it is written, in statistics, in an index, in scans, in SQL and in expressions of Arrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.errors import InvalidInputError
from penstock.format import Column
from penstock.format.kinds import Tensor

NAT = np.datetime64("NaT", "us")
DAY = np.datetime64("2026-01-01", "us")
CONDITIONS = [
    "ts IS NULL",
    "ts IS NOT NULL",
    "ts < TIMESTAMP '2026-01-01 00:00:20'",
    "ts <= TIMESTAMP '2026-01-01 00:00:05' OR ts IS NULL",
    "ts = TIMESTAMP '2026-01-01 00:00:07'",
    "ts <> TIMESTAMP '2026-01-01 00:00:07'",
    "ts > TIMESTAMP '1700-01-01'",
    "NOT (ts < TIMESTAMP '2026-01-01 00:00:20')",
    "ts IN (TIMESTAMP '2026-01-01 00:00:03', TIMESTAMP '2026-01-01 00:00:30')",
    "ts IS NOT DISTINCT FROM NULL",
    "ts BETWEEN TIMESTAMP '1600-01-01' AND TIMESTAMP '2026-01-01 00:00:10'",
    "coalesce(ts, TIMESTAMP '2030-01-01') > TIMESTAMP '2029-01-01'",
    "ts IS NULL AND n % 2 = 0",
]
EXPRESSIONS = {
    "ts IS NULL": pc.field("ts").is_null(),
    "ts IS NOT NULL": pc.field("ts").is_valid(),
    "ts < TIMESTAMP '2026-01-01 00:00:20'": pc.field("ts") < pa.scalar(DAY + np.timedelta64(20, "s")),
}


def times(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    found = DAY + rng.integers(0, 40, count) * np.timedelta64(1_000_000, "us")
    found[rng.random(count) < 0.3] = NAT
    found[: count // 4] = NAT  # whole pages of them
    return found


def make(uri: Any, *, nullable: bool) -> Any:
    ds = penstock.create(
        uri,
        {
            "ts": Column(Tensor("datetime64[us]"), nullable, page_bytes=128),
            "n": Column(Tensor("int64"), page_bytes=128),
        },
    )
    for number in range(3):
        ds.append({"ts": times(60, number), "n": np.arange(60) + 60 * number})
        ds.commit("rows")
    return ds


@contextmanager
def earlier_writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As tables were written when NaT was a time like any other."""
    with monkeypatch.context() as patch:
        for module in ("table._encode", "table._statistics", "table._read"):
            patch.setattr(f"penstock.{module}.nat_as_null", lambda kind, array: array)  # noqa: ARG005
        yield


def check(ds: Any) -> None:
    memory, plain = ds.to_arrow(), duckdb.connect()
    plain.register("memory", memory)
    assert memory["ts"].null_count == np.isnat(memory["ts"].to_numpy()).sum() > 0
    for condition in CONDITIONS:
        expected = plain.execute(f"SELECT n FROM memory WHERE {condition} ORDER BY n").fetchall()
        found = ds.where(condition).to_arrow()["n"].to_pylist()
        assert sorted(found) == [n for (n,) in expected], condition
    for condition, expression in EXPRESSIONS.items():
        assert sorted(ds[expression]["n"][:].tolist()) == sorted(ds.where(condition).to_arrow()["n"].to_pylist())
        assert ds.to_arrow_dataset().to_table(filter=expression).num_rows == len(ds.where(condition))
    counts = "SELECT count(*) AS all_rows, count(ts) AS present, count(*) FILTER (ts IS NULL) AS missing FROM ds"
    expected = plain.execute(counts.replace("FROM ds", "FROM memory")).fetchall()
    assert [tuple(ds.query(counts)[0].values())] == expected


def changed(uri: Any, ds: Any) -> Iterator[Any]:
    yield ds
    ds.update(positions=[1, 70, 71], data={"ts": np.array([DAY, NAT, DAY + 5], "M8[us]")})
    ds.delete(positions=[5, 100])
    ds.commit("changed")
    yield ds
    ds.branches.create("other")
    other = ds.checkout("other")
    other.update(positions=[90, 91], data={"ts": np.array([NAT, DAY], "M8[us]")})
    other.append({"ts": times(20, 9), "n": np.arange(1000, 1020)})
    other.commit("on a branch")
    ds.merge("other")
    yield ds
    penstock.compact(uri)
    yield penstock.load(uri)


@pytest.mark.parametrize("index", [False, True], ids=["scan", "index"])
def test_not_a_time_is_null_in_every_question(tmp_path: Path, index: bool) -> None:
    uri = tmp_path / "table"
    ds = make(uri, nullable=True)
    if index:
        ds.create_index("ts", kind="scalar")
    for state in changed(uri, ds):
        check(state)


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("index", [False, True], ids=["scan", "index"])
def test_a_table_of_an_earlier_writer_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nullable: bool, index: bool
) -> None:
    uri = tmp_path / "table"
    with earlier_writer(monkeypatch):
        ds = make(uri, nullable=nullable)
        if index:
            ds.create_index("ts", kind="scalar")
    check(ds)
    ds.delete(positions=[5, 100])
    ds.commit("changed")
    penstock.compact(uri)
    check(penstock.load(uri))


@pytest.mark.parametrize(
    "values",
    [
        np.array([DAY, NAT]),
        [DAY, NAT],
        pa.array([0, np.iinfo(np.int64).min], pa.timestamp("us")),
        pa.array([0, np.iinfo(np.int64).min]),
    ],
    ids=["numpy", "list", "arrow", "stored"],
)
def test_not_a_time_is_refused_where_null_is(values: Any) -> None:
    ds = penstock.create("memory://", {"ts": "datetime64[us]"})
    with pytest.raises(InvalidInputError, match="row 1: the value is missing"):
        ds.append({"ts": values})
    ds = penstock.create("memory://", {"ts": Column(Tensor("datetime64[us]"), nullable=True)})
    ds.append({"ts": values})
    assert ds[1]["ts"] is None
    assert list(ds.to_numpy()["ts_mask"]) == [True, False]


def test_not_a_time_makes_an_inferred_column_nullable() -> None:
    for values in (np.array([DAY, NAT]), [DAY, NAT], np.array([1, "NaT"], "m8[ms]")):
        ds = penstock.create("memory://")
        ds.append({"ts": values})
        assert ds.schema["ts"].nullable
        assert ds[1]["ts"] is None


def test_a_member_of_a_struct_is_null_too() -> None:
    ds = penstock.create("memory://", {"at": penstock.Struct({"ts": Tensor("datetime64[us]")})})
    ds.append({"at": [{"ts": DAY}, {"ts": NAT}]})
    assert ds[1]["at"] == {"ts": None}


def test_elements_of_a_tensor_stay_as_they_are() -> None:
    ds = penstock.create("memory://", {"ts": "datetime64[us][2]"})
    ds.append({"ts": np.array([[DAY, NAT]])})
    assert np.isnat(ds[0]["ts"]).tolist() == [False, True]
