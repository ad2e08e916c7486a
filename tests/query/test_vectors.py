"""Vector scores: equal to a reference in float64, over every metric, dtype, null, deletion and selection."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Embedding, Tensor, Text
from penstock.errors import CorruptError, InvalidInputError
from penstock.query.search import VectorScores
from penstock.storage import open_store
from penstock.table import Int64Array
from penstock.testing import CountingStore

METRICS = ("cosine", "l2", "dot")
SMALL: dict[str, Any] = {"page_bytes": 256, "file_bytes": 1024}


def scores_of(ds: Dataset, query: Any, metric: str, name: str = "v") -> VectorScores:
    return VectorScores(ds._reader, ds.schema[name], query, metric)


def reference(rows: list[Any], query: Any, metric: str) -> npt.NDArray[np.float64]:
    """Scores in float64, one row at a time."""
    q = np.asarray(query, np.float64)
    found: list[Any] = []
    for row in rows:
        v = None if row is None else np.asarray(row, np.float64)
        if v is None or not np.isfinite(v).all():
            found.append(np.nan)
        elif metric == "dot":
            found.append(v @ q)
        elif metric == "l2":
            found.append(np.linalg.norm(v - q))
        else:
            scale = np.linalg.norm(v) * np.linalg.norm(q)
            found.append(np.clip(v @ q / scale, -1, 1) if scale else np.nan)
    return np.array(found)


def assert_ranked(found: Any, expected: npt.NDArray[np.float64], allowed: Int64Array, count: int, metric: str) -> None:
    """The found rows have the right scores, in order, and no better row was left out; equal scores are equal."""
    has_score = allowed[~np.isnan(expected[allowed])]
    sign = 1 if metric == "l2" else -1
    best = np.sort(sign * expected[has_score])[:count]
    assert len(found.positions) == len(best) == len(set(found.positions.tolist()))
    assert np.isin(found.positions, has_score).all()
    np.testing.assert_allclose(found.scores, expected[found.positions], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sign * expected[found.positions], best, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(data=st.data())
def test_exact_scores_and_ranking_equal_a_reference(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from((1, 3, 17)))
    dtype = data.draw(st.sampled_from(("float32", "float64", "float16", "bfloat16", "int8", "int64")))
    nullable = data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    ds = penstock.create("memory://", {"v": Column(Tensor(dtype, (length,)), nullable=nullable, **SMALL)})
    logical = getattr(ml_dtypes, dtype) if dtype == "bfloat16" else np.dtype(dtype)
    rows: list[Any] = []
    for _ in range(data.draw(st.integers(1, 3))):
        part = list((random.normal(size=(data.draw(st.integers(1, 60)), length)) * 4).astype(logical))
        part[0] = np.zeros(length, logical)
        if nullable:
            part = [None if random.random() < 0.2 else row for row in part]
        ds.append({"v": part})
        rows += part
    ds.commit()
    gone = np.flatnonzero(random.random(len(rows)) < 0.2)
    ds.delete(positions=gone)
    ds.commit()
    rows = [row for at, row in enumerate(rows) if at not in gone]
    metric = data.draw(st.sampled_from(METRICS))
    query = random.normal(size=length)
    expected = reference(rows, query, metric)
    scores = scores_of(ds, query, metric)
    chosen = np.flatnonzero(random.random(len(rows)) < data.draw(st.sampled_from((0.1, 0.9))))
    np.testing.assert_allclose(scores.at(chosen), expected[chosen], rtol=1e-4, atol=1e-4)
    count = data.draw(st.sampled_from((1, 7, 1000)))
    assert_ranked(scores.top(count, allowed=chosen, exact=True), expected, chosen, count, metric)
    assert_ranked(scores.top(count, allowed=None, exact=True), expected, np.arange(len(rows)), count, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_huge_tiny_and_close_vectors_keep_their_digits(metric: str) -> None:
    rows = [[1e25, 2e25], [1e-25, 3e-25], [0, 0], [1, 2], [1 + 1e-5, 2], [np.nan, 1], [np.inf, 1], [-1e-30, 0]]
    rows = list(np.array(rows, np.float32))
    ds = penstock.create("memory://", {"v": Embedding(2)})
    ds.append({"v": rows})
    ds.commit()
    expected = reference(rows, np.array([1, 2], np.float32), metric)
    found = scores_of(ds, [1, 2], metric)
    for _ in range(2):  # the second time with known norms
        np.testing.assert_allclose(found.at(np.arange(len(rows))), expected, rtol=1e-5, atol=1e-9)


def test_equal_scores_are_ordered_by_position_and_the_column_may_be_filled_in() -> None:
    ds = penstock.create("memory://", {"n": int})
    ds.append({"n": np.arange(50)})
    ds.add_column("v", Tensor("float32", (2,)), fill=[1, 0])
    ds.commit()
    found = scores_of(ds, [1, 0], "cosine").top(5, allowed=np.arange(10, 50), exact=True)
    assert found.positions.tolist() == [10, 11, 12, 13, 14]
    assert found.scores.tolist() == [1, 1, 1, 1, 1]


def test_pages_without_an_allowed_row_are_not_read() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"v": Column(Embedding(16), page_bytes=64 << 10)})
    ds.append({"v": np.random.default_rng(0).normal(size=(64 << 10, 16)).astype(np.float32)})
    ds.commit()
    scores = scores_of(ds, np.ones(16), "l2")
    scores.top(1, allowed=np.array([0]), exact=True)
    store.reset()
    found = scores.top(3, allowed=np.array([5, 900, 60_000, 60_001]), exact=True)
    assert len(found.positions) == 3
    assert store.requests.total() == 2
    assert store.bytes.total() < 150_000
    assert scores.top(3, allowed=np.zeros(0, np.int64), exact=True).positions.tolist() == []


@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_page_is_named(remote: bool) -> None:
    memory = open_store("memory://")
    store = CountingStore(memory) if remote else memory
    ds = penstock.create(store, {"v": Column(Embedding(4), page_bytes=4096)})
    ds.append({"v": np.ones((2000, 4), np.float32)})
    ds.commit()
    [file] = next(iter(ds._reader.tree.fragments(ds._reader.snapshot.nodes))).files_of(ds.schema["v"].id)
    data = bytearray(memory.get(file.key))
    data[file.offsets[3] - 1] ^= 1
    memory.put(file.key, bytes(data))
    scores = scores_of(ds, np.ones(4), "cosine")
    with pytest.raises(CorruptError, match="page 2"):
        scores.top(5, allowed=None, exact=True)
    assert len(scores.top(5, allowed=np.arange(1500, 1800), exact=True).positions) == 5


@pytest.mark.parametrize(
    ("name", "query", "metric", "message"),
    [
        ("t", [1.0], "dot", "column 't' holds text and not vectors"),
        ("m", [1.0], "dot", r"column 'm' holds float32\[2, 2\] and not vectors"),
        ("r", [1.0], "dot", "column 'r' holds .* and not vectors"),
        ("v", [1, 2, 3], "dot", r"shape \(3,\), but column 'v' holds vectors of length 2"),
        ("v", [[1, 2]], "dot", r"shape \(1, 2\)"),
        ("v", [1, float("nan")], "l2", "contains NaN, infinity"),
        ("v", [1, 1e300], "l2", "a number beyond float32"),
        ("v", ["a", "b"], "l2", "not a list of numbers: give 2"),
        ("v", None, "l2", "shape"),
        ("v", [1, 2], "euclid", "'euclid' is not a metric of vectors; choose cosine, l2 or dot"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_with_the_reason(name: str, query: Any, metric: str, message: str) -> None:
    schema = {"t": Text(), "m": Tensor("float32", (2, 2)), "r": Tensor("float32", (None,)), "v": Embedding(2)}
    ds = penstock.create("memory://", schema)
    with pytest.raises(InvalidInputError, match=message):
        scores_of(ds, query, metric, name)
