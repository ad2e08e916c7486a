"""Ranked questions look at few rows, and give the rows that a full scan gives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.query import Ranked, Relation, run_sql
from penstock.query.search import SearchPlan
from penstock.table import Int64Array
from tests.query.tables import as_table, make_table, relation


class MemoryScores:
    """Scores of rows in memory, which count how they are asked."""

    deep_is_cheap = False

    def __init__(self, values: Any, *, higher_is_better: bool, is_text: bool) -> None:
        self.values, self.higher_is_better, self.is_text = values.astype(np.float32), higher_is_better, is_text
        self.asked: list[int] = []
        self.deepest = 0

    def at(self, positions: Int64Array) -> Any:
        self.asked.append(len(positions))
        return self.values[positions]

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        rows = np.arange(len(self.values)) if allowed is None else allowed
        rows = rows[self.values[rows] > 0] if self.is_text else rows
        self.deepest = max(self.deepest, count)
        order = np.argsort(-self.values[rows] if self.higher_is_better else self.values[rows], kind="stable")[:count]
        return Ranked(rows[order], self.values[rows[order]])

    def plan(self, count: int) -> SearchPlan:
        return SearchPlan(None, count)


class Factory:
    def __init__(self, ds: Any) -> None:
        self.ds = ds
        self.made: dict[str, MemoryScores] = {}

    def __call__(self, given: Relation, function: str, column: str, argument: Any) -> MemoryScores:
        if function == "bm25":
            values = np.array([(id * 7919) % 11 - 5 for id in range(len(self.ds))]).clip(0)
            found = MemoryScores(values, higher_is_better=True, is_text=True)
        else:
            vectors = np.asarray(given.reader.columns([column], [np.arange(len(self.ds))])[0][column].values)
            product = vectors @ argument
            if function == "cosine_similarity":
                values = product / np.linalg.norm(vectors, axis=1) / np.linalg.norm(argument)
            else:
                values = product if function == "dot" else np.linalg.norm(vectors - argument, axis=1)
            found = MemoryScores(values, higher_is_better=function != "l2_distance", is_text=False)
        self.made[function] = found
        return found


@pytest.fixture(scope="module")
def ds() -> Any:
    return make_table()


VECTOR = [0.3, -1.0, 0.5, 2.0]
ORDERS = [
    ("cosine_similarity(emb, $v)", "DESC"),
    ("l2_distance(emb, $v)", "ASC"),
    ("0.7 * cosine_similarity(emb, $v) + 0.3 * bm25(camera, 'red arm')", "DESC"),
    ("bm25(camera, 'red') / 2 - l2_distance(emb, $v)", "DESC"),
    ("-dot(emb, $v)", "ASC"),
]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.sampled_from(ORDERS),
    where=st.sampled_from(
        ["", "WHERE id < 100", "WHERE flag AND label = 'push'", "WHERE id > 1000", "WHERE id IN (SELECT added FROM ds)"]
    ),
    limit=st.sampled_from(["LIMIT 5", "LIMIT 3 OFFSET 4", "LIMIT 100"]),
    every=st.sampled_from([1, 3]),
)
def test_the_best_rows_are_those_of_a_full_scan(
    ds: Any, order: tuple[str, str], where: str, limit: str, every: int
) -> None:
    source = {"ds": relation(ds, range(0, len(ds), every))}
    expression, direction = order
    params = {"v": VECTOR}
    sql = f"SELECT id, {expression} AS score FROM ds {where} ORDER BY score {direction} {limit}"
    all_rows = sql.replace("ORDER BY score", "ORDER BY score + id * 0")  # not a sum of scores: no search
    found = as_table(run_sql(sql, source, params, scores=Factory(ds)), source)
    expected = as_table(run_sql(all_rows, source, params, scores=Factory(ds)), source)
    np.testing.assert_allclose(found["score"].to_numpy(), expected["score"].to_numpy(), rtol=1e-6)
    assert found.num_rows == expected.num_rows


def test_a_ranked_question_scores_few_rows(ds: Any) -> None:
    factory = Factory(ds)
    sql = "SELECT *, cosine_similarity(emb, ?) AS score FROM ds ORDER BY score DESC LIMIT 4"
    result = run_sql(sql, {"ds": relation(ds)}, [np.array(VECTOR, np.float32)], scores=factory)
    assert len(result) == 4
    scores = factory.made["cosine_similarity"]
    assert sum(scores.asked) <= 8
    assert scores.deepest == 4


def test_scores_are_columns_anywhere(ds: Any) -> None:
    source = {"ds": relation(ds)}
    sql = (
        "WITH near AS (SELECT id, label, emb FROM ds WHERE l2_distance(emb, $v) < 2)"
        " SELECT label, count(*), max(dot(emb, $v)) FROM near GROUP BY label ORDER BY label"
    )
    found = as_table(run_sql(sql, source, {"v": VECTOR}, scores=Factory(ds)), source)
    vectors = np.asarray(ds["emb"][:])
    near = np.linalg.norm(vectors - VECTOR, axis=1) < 2
    labels = np.asarray(ds["label"][:])
    expected = [int((labels[near] == label).sum()) for label in np.unique(labels[near])]
    assert found[1].to_pylist() == expected


@pytest.mark.parametrize(
    ("sql", "params", "message"),
    [
        ("SELECT bm25(reward, 'x') FROM ds", None, r"bm25 needs a column of text; reward is .*\n.*\n +\^\^\^\^\^\^"),
        ("SELECT cosine_similarity(emb, [1, 2, 3]) FROM ds", None, "vectors of length 4, and this one has 3"),
        ("SELECT cosine_similarity(camera, ?) FROM ds", [[1.0]], "needs a column of vectors"),
        ("SELECT cosine_similarity(emb) FROM ds", None, "takes 2 arguments, not 1"),
        ("SELECT dot(emb, emb) FROM ds", None, "must be a constant or a parameter"),
        ("SELECT dot(emb, 'a') FROM ds", None, "a vector of numbers"),
        ("SELECT bm25(camera, 5) FROM ds", None, "as a text"),
        ("SELECT dot(emb + 1, [1, 2, 3, 4]) FROM ds", None, "must be a column"),
        ("SELECT dot(e, [1,2,3,4]) FROM (SELECT first(emb) AS e FROM ds)", None, "of a table"),
    ],
)
def test_a_wrong_score_is_explained(ds: Any, sql: str, params: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        run_sql(sql, {"ds": relation(ds)}, params, scores=Factory(ds))
