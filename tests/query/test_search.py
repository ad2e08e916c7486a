"""`search` gives the rows that scores computed from all values give, as a view that streams."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import penstock
from penstock.errors import InvalidInputError, NotFoundError

ROWS, LENGTH = 240, 8
WORDS = np.array(["red", "blue", "robot", "arm", "cup", "grasp"])


def rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "label": rng.integers(0, 2, count),
        "caption": [" ".join(rng.choice(WORDS, 4)) for _ in range(count)],
        "emb": rng.normal(size=(count, LENGTH)).astype(np.float32),
        "meta": [{"camera": ["left", "right"][number % 2]} for number in range(count)],
    }


def make_table(uri: str | Path) -> penstock.Dataset:
    dataset = penstock.create(
        uri,
        schema={
            "label": penstock.Label(("drop", "grasp")),
            "caption": penstock.Text(),
            "emb": penstock.Embedding(LENGTH),
            "meta": penstock.Json(),
        },
    )
    dataset.append(rows(ROWS, 0))
    dataset.commit("rows")
    return dataset


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    return make_table(tmp_path_factory.mktemp("search") / "t")


QUERY = np.random.default_rng(9).normal(size=LENGTH).astype(np.float32)


def cosine(view: penstock.View, query: Any = QUERY) -> Any:
    values = np.asarray(view.to_numpy()["emb"], np.float64)
    return values @ query / np.linalg.norm(values, axis=1) / np.linalg.norm(query)


def bm25(view: penstock.View, words: set[str], corpus: penstock.View) -> Any:
    documents = [text.split() for text in corpus.select("caption").to_numpy()["caption"]]
    mean = np.mean([len(document) for document in documents])
    scores = np.zeros(len(view))
    for word in words:
        matching = sum(word in document for document in documents)
        weight = np.log(1 + (len(documents) - matching + 0.5) / (matching + 0.5))
        for row, text in enumerate(view.select("caption").to_numpy()["caption"]):
            count, length = text.split().count(word), len(text.split())
            scores[row] += weight * 2.2 * count / (count + 1.2 * (0.25 + 0.75 * length / mean))
    return scores


def ids(view: penstock.View) -> list[int]:
    return [int(row) for row in view.select("_row_id").to_numpy()["_row_id"]]


@pytest.mark.parametrize("indexed", [False, True])
def test_weights_add_scores_as_sql_does(tmp_path: Path, indexed: bool) -> None:
    dataset = make_table(tmp_path / "t")
    if indexed:
        dataset.create_index("emb", "vector")
        dataset.create_index("caption", "text")
    dataset.append(rows(40, 1))
    dataset.delete(positions=np.arange(0, 100, 7))
    dataset.commit("changes that no index covers")
    found = dataset.search(vector=QUERY, text="red robot", fuse={"vector": 0.7, "text": 0.3}, k=12, exact=True)
    expected = 0.7 * cosine(dataset) + 0.3 * bm25(dataset, {"red", "robot"}, dataset)
    order = np.argsort(-expected, kind="stable")[:12]
    assert ids(found) == np.array(ids(dataset))[order].tolist()
    np.testing.assert_allclose(found.to_numpy()["score"], expected[order], rtol=1e-5)


def test_ranks_are_fused_by_default(table: penstock.Dataset) -> None:
    found = table.search(vector=QUERY, text="red robot", k=10)
    sums: dict[int, float] = {}
    for ranking in (table.search(vector=QUERY, k=100), table.search(text="red robot", k=100)):
        for rank, row in enumerate(ids(ranking), 1):
            sums[row] = sums.get(row, 0) + 1 / (60 + rank)
    assert ids(found) == sorted(sums, key=lambda row: (-np.float32(sums[row]), row))[:10]


@pytest.mark.parametrize(("metric", "sign"), [("cosine", -1), ("dot", -1), ("l2", 1)])
def test_the_metric_orders_rows(table: penstock.Dataset, metric: str, sign: int) -> None:
    values = np.asarray(table.to_numpy()["emb"])
    expected = {"cosine": cosine(table), "dot": values @ QUERY, "l2": np.linalg.norm(values - QUERY, axis=1)}[metric]
    found = table.search(vector=QUERY, metric=metric, k=5)
    assert ids(found) == np.argsort(sign * expected)[:5].tolist()
    np.testing.assert_allclose(found.to_numpy()["score"], np.sort(sign * expected)[:5] * sign, rtol=1e-5)


def test_the_metric_is_that_of_the_index(tmp_path: Path) -> None:
    dataset = make_table(tmp_path / "t")
    dataset.create_index("emb", "vector", metric="l2")
    best = dataset.search(vector=QUERY, k=3).to_numpy()["score"]
    assert list(best) == sorted(best)
    assert list(best) == pytest.approx(list(dataset.search(vector=QUERY, k=3, metric="l2").to_numpy()["score"]))


def test_a_condition_and_a_view_limit_the_rows(table: penstock.Dataset) -> None:
    wanted = [row for row in range(50) if table[row]["label"] == 1 and table[row]["meta"]["camera"] == "left"]
    part = table[:50]
    for found in (
        part.search(vector=QUERY, where="label = 'grasp' AND meta.camera = 'left'", k=100),
        part.search(vector=QUERY, where="label = ? AND meta.camera = 'left'", params=["grasp"], k=100),
        table[wanted].search(vector=QUERY, k=100),
        table[[*wanted, *wanted]].search(vector=QUERY, k=100),
    ):
        assert sorted(ids(found)) == wanted
    assert set(ids(table[:50].search(vector=QUERY, where=pc.field("label") == 1, k=100))) == {
        row for row in range(50) if table[row]["label"] == 1
    }
    assert len(table.search(text="red", where="label = 7")) == 0


def test_like_searches_by_the_vector_of_a_row_and_leaves_it_out(table: penstock.Dataset) -> None:
    found = table.search(like=5, k=4)
    expected = cosine(table, table[5]["emb"])
    assert ids(found) == [row for row in np.argsort(-expected)[:5].tolist() if row != 5]
    both = table.search(like=5, text="red", k=ROWS)
    assert 5 not in ids(both)
    weighed = table.search(like=5, text="red", k=ROWS, fuse={"vector": 1, "text": 1})
    assert sorted(ids(weighed)) == [row for row in range(ROWS) if row != 5]


def test_the_answer_streams_and_can_be_asked_again(table: penstock.Dataset) -> None:
    found = table.select(["caption"]).search(text="red robot", k=30, score="relevance")
    assert found.schema.names == ["caption", "relevance"]
    batches = list(found.numpy(batch_size=10, shuffle=False))
    assert np.concatenate([batch["relevance"] for batch in batches]).tolist() == sorted(
        found.to_numpy()["relevance"], reverse=True
    )
    again = found.where("relevance > 0.1").search(text="blue", k=5)
    assert again.schema.names == ["caption", "relevance", "score"]
    assert set(ids(again)) <= set(ids(found))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to search by"),
        ({"vector": QUERY, "like": 3}, "either a vector or the row"),
        ({"vector": QUERY, "k": 0}, "at least one row"),
        ({"vector": QUERY, "score": "caption"}, "'caption' already"),
        ({"vector": QUERY[:3]}, "vectors of length 8"),
        ({"vector": QUERY, "vector_column": "caption"}, "not vectors"),
        ({"vector": QUERY, "metric": "near"}, "not a metric"),
        ({"vector": QUERY, "text_column": "caption"}, "there is no text"),
        ({"vector": QUERY, "params": [1]}, "condition in SQL"),
        ({"text": "red", "text_column": "emb"}, "words are searched in text"),
        ({"text": "red", "metric": "l2"}, "there is no metric to search by"),
        ({"text": "red", "fuse": {"text": 1.0}}, "weights are for a search by a vector and a text"),
        ({"text": "red", "vector": QUERY, "fuse": {"text": 1.0, "vector": -1}}, "weights are numbers above 0"),
        ({"text": "red", "vector": QUERY, "fuse": "best"}, "choose 'rrf' or weights"),
        ({"text": "red", "where": "label = 'grsp'"}, "grasp"),
    ],
)
def test_a_search_that_does_not_fit_is_refused(table: penstock.Dataset, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.search(**given)


def test_unknown_rows_and_columns_are_not_found(table: penstock.Dataset) -> None:
    with pytest.raises(NotFoundError, match="no row with id 9999"):
        table.search(like=9999)
    with pytest.raises(NotFoundError, match="captions"):
        table.search(text="red", text_column="captions")


def test_the_columns_to_search_are_found_or_listed(tmp_path: Path) -> None:
    dataset = penstock.create(
        tmp_path / "t",
        schema={
            "title": penstock.Text(),
            "body": penstock.Text(),
            "state": penstock.Tensor("float32", (3,)),
            "action": penstock.Tensor("float32", (3,)),
        },
    )
    state = np.eye(3, dtype=np.float32)
    dataset.append({"title": ["a", "b", "c"], "body": ["d", "e", "f"], "state": state, "action": state[::-1].copy()})
    dataset.commit("rows")
    with pytest.raises(InvalidInputError, match="several columns of texts: title, body; choose one with text_column"):
        dataset.search(text="e")
    with pytest.raises(InvalidInputError, match="several columns of vectors: state, action"):
        dataset.search(vector=[1, 0, 0])
    dataset.create_index("body", "text")
    assert ids(dataset.search(text="e")) == [1]
    assert ids(dataset.search(vector=[1, 0, 0], vector_column="action", k=1)) == [2]
    empty = penstock.create(tmp_path / "empty", schema={"title": penstock.Text()})
    with pytest.raises(InvalidInputError, match="no column of vectors"):
        empty.search(vector=[1])
