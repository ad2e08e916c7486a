"""Every kind of question gives what plain DuckDB gives over the same rows in memory."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.query import Relation, run_sql
from tests.query.tables import as_table, in_memory, make_table, relation

ENGINE = duckdb.connect()
VIEWS = ("all", "every second", "backwards", "shuffled with repeats")


@pytest.fixture(scope="module")
def relations() -> dict[str, Relation]:
    ds = make_table()
    live = len(ds)
    shuffled = np.random.default_rng(5).integers(0, live, 200)
    views: list[Any] = [range(live), range(1, live, 2), range(live - 1, -1, -1), shuffled]
    return {name: relation(ds, rows) for name, rows in zip(VIEWS, views, strict=True)}


@pytest.fixture(scope="module")
def memories(relations: dict[str, Relation]) -> dict[str, pa.Table]:
    return {name: in_memory(each) for name, each in relations.items()}


def plain(sql: str, params: Any = None, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with ENGINE.cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(sql, params).fetchall() if params else connection.execute(sql).fetchall()


def answered(sql: str, sources: dict[str, Relation], params: Any = None) -> list[tuple[Any, ...]]:
    table = as_table(run_sql(sql, sources, params), sources)
    return plain("SELECT * FROM answer", answer=table)


def reference(sql: str) -> str:
    """The same question where `_row_id` is a column like others."""
    found = sql.replace("* EXCLUDE (meta)", "* EXCLUDE (meta, _row_id)").replace(
        "SELECT * FROM ds", "SELECT * EXCLUDE (_row_id) FROM ds"
    )
    return found.replace("SELECT *,", "SELECT * EXCLUDE (_row_id),") if "OVER" not in sql else found


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], *, ordered: bool) -> None:
    if not ordered:
        found, expected = sorted(found, key=repr), sorted(expected, key=repr)
    assert repr(found) == repr(expected)


QUESTIONS = [
    ("SELECT * EXCLUDE (meta) FROM ds ORDER BY id, _row_id", True),
    ("SELECT id, reward FROM ds", True),
    ("SELECT id FROM ds LIMIT 7 OFFSET 3", True),
    ("SELECT *, reward * 2 AS twice FROM ds WHERE label = 2 AND reward < 0.5", True),
    ("SELECT id, blob FROM ds WHERE id BETWEEN 20 AND 150 AND camera = 'cam1'", True),
    ("SELECT d.id AS x, d.emb[2], pos.x, tags[1], length(tags) FROM ds d WHERE x > 40 ORDER BY 2 LIMIT 9", True),
    ("SELECT id, octet_length(blob) AS size FROM ds WHERE size > 20 ORDER BY size DESC, id LIMIT 11", True),
    ("SELECT camera, count(*), avg(reward), max(octet_length(blob)) FROM ds GROUP BY camera", False),
    ("SELECT camera, first(blob ORDER BY id) FROM ds GROUP BY camera ORDER BY camera NULLS LAST", True),
    ("SELECT blob, count(*) FROM ds GROUP BY blob", False),
    ("SELECT DISTINCT label, blob FROM ds", False),
    ("SELECT count(*) FROM ds", True),
    ("SELECT count(*), sum(extra)::BIGINT, sum(added)::BIGINT FROM ds WHERE flag", True),
    ("SELECT a.id, b.id, a.blob, b.big[1] FROM ds a JOIN ds b ON a.added = b.id AND b.flag ORDER BY"
     " a.id, b.id", True),
    ("SELECT a.id, b.blob FROM ds a LEFT JOIN (SELECT * FROM ds WHERE id < 50) b USING (id) ORDER BY id, 2", True),
    ("SELECT * EXCLUDE (meta) FROM ds a NATURAL JOIN (SELECT id, reward FROM ds WHERE flag) b ORDER"
     " BY a._row_id", True),
    ("WITH c AS (SELECT *, row_number() OVER (PARTITION BY label ORDER BY reward, id, _row_id) AS n FROM ds)"
     " SELECT id, blob, n FROM c WHERE n <= 2 ORDER BY label, n", True),
    ("WITH c AS (SELECT blob AS b, id AS i FROM ds WHERE id < 60) SELECT i, octet_length(b) FROM c"
     " ORDER BY i, 2", True),
    ("SELECT id FROM ds WHERE reward = (SELECT max(reward) FROM ds)", True),
    ("SELECT id FROM ds o WHERE EXISTS (SELECT 1 FROM ds i WHERE i.added = o.id AND i.flag)", True),
    ("SELECT id FROM ds WHERE id IN (SELECT added FROM ds WHERE label = 0)", True),
    ("SELECT id, blob FROM ds WHERE id < 10 UNION ALL SELECT id, blob FROM ds WHERE id > 250 ORDER BY id", True),
    ("SELECT id FROM ds WHERE flag EXCEPT SELECT id FROM ds WHERE label = 1", False),
    ("SELECT id, lag(blob) OVER (ORDER BY id, _row_id) FROM ds WHERE id < 30", False),
    ("SELECT label, list(id ORDER BY id) FROM ds GROUP BY ALL HAVING count(*) > 3 ORDER BY ALL", True),
    ("SELECT id, unnest(tags) AS t FROM ds ORDER BY id, t", True),
    ("SELECT id, i FROM ds, range(3) r(i) WHERE id < 5 ORDER BY id, i", True),
    ("SELECT d.id, v.n FROM ds d JOIN (VALUES (1, 'one'), (2, 'two')) v(k, n) ON d.id = v.k ORDER BY"
     " d.id, d._row_id", True),
    ("SELECT * FROM (SELECT id, reward AS r FROM ds ORDER BY r DESC, id, _row_id LIMIT 5) ORDER BY id", True),
    ("SELECT min(COLUMNS('^(id|reward)$')) FROM ds", True),
    ("SELECT * REPLACE (reward + 1 AS reward) FROM (SELECT id, reward FROM ds) ORDER BY id, 2", True),
    ("SELECT id + 1 AS b, b * 2 AS c FROM ds WHERE c > 500 ORDER BY c", True),
    ("SELECT list_transform(tags, lambda x: x || '!') FROM ds WHERE id < 12", True),
    ("SELECT ts, ts + INTERVAL 1 DAY FROM ds WHERE ts >= TIMESTAMP '2026-01-05' ORDER BY ts, _row_id LIMIT 4", True),
    ("SELECT id, half FROM ds WHERE half < 0.35 OR camera IS NULL", True),
    ("SELECT id, CASE WHEN flag THEN blob ELSE NULL END FROM ds WHERE id < 9", True),
    ("SELECT id FROM ds SEMI JOIN (SELECT added FROM ds) x ON ds.id = x.added", True),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT n, id FROM"
     " t JOIN ds ON id = n ORDER BY ALL", True),
    ("SELECT id, _row_id FROM ds WHERE _row_id < 20", True),
    ("SELECT id FROM ds QUALIFY row_number() OVER (PARTITION BY label ORDER BY id, _row_id) = 1 ORDER BY id", True),
    ("WITH ds AS (SELECT * FROM ds WHERE flag) SELECT id, big FROM ds WHERE id > 200", True),
    ("SELECT any_value(camera), arg_max(blob, added) FROM ds WHERE added < 100", True),
    ("SELECT id, meta->>'n', meta->'$.camera' FROM ds WHERE meta->>'n' = '4'", True),
    ("SELECT id, blob AS b FROM ds ORDER BY b DESC, id, _row_id LIMIT 5", True),
    ("SELECT blob, id, _row_id FROM ds ORDER BY 1 DESC, 2, 3 LIMIT 5", True),
    ("SELECT blob, id, _row_id FROM ds ORDER BY ALL LIMIT 5", True),
    ("SELECT a.blob, b.id FROM ds a JOIN ds b ON a.id = b.added ORDER BY ALL LIMIT 9", True),
    ("SELECT a.blob, b.id FROM ds a JOIN ds b ON a.id = b.added ORDER BY 1 DESC, b.id LIMIT 9", True),
    ("SELECT a.blob AS x, b.id FROM ds a JOIN ds b ON a.id = b.added ORDER BY x, b.id LIMIT 9", True),
    ("SELECT avg(COLUMNS('^(id|reward)$')), current_date > DATE '2020-01-01' FROM ds", True),
    ("FROM ds SELECT id WHERE reward IS NOT NULL AND NOT flag", True),
]  # fmt: skip


@pytest.mark.parametrize("view", ["all", "shuffled with repeats"])
@pytest.mark.parametrize(("sql", "ordered"), QUESTIONS, ids=[sql[:60] for sql, _ in QUESTIONS])
def test_a_question_answers_as_plain_duckdb(
    relations: dict[str, Relation], memories: dict[str, pa.Table], sql: str, ordered: bool, view: str
) -> None:
    found = answered(sql, {"ds": relations[view]})
    assert_same(found, plain(reference(sql), ds=memories[view]), ordered=ordered)


CONDITIONS = st.one_of(
    st.builds("id {} {}".format, st.sampled_from(["<", ">=", "=", "!=", ">"]), st.integers(-5, 320)),
    st.builds("label IN ({}, {})".format, st.integers(0, 5), st.integers(0, 5)),
    st.builds("reward {} {}".format, st.sampled_from(["<", "<=", "=", ">", "<>"]), st.sampled_from([0.1, 0.5, 0.93])),
    st.builds("camera = '{}'".format, st.sampled_from(["cam0", "cam2", "cam9", "none"])),
    st.sampled_from(["camera IS NULL", "camera IS NOT NULL", "flag", "NOT flag", "extra = 7", "added > 300",
                     "ts < TIMESTAMP '2026-01-04 05:00:00'", "half = 0.5", "pos.x = 2", "emb[1] > 0",
                     "octet_length(blob) < 9", "_row_id < 77", "json_extract_string(meta, '$.camera.side') = 'left'"]),
)  # fmt: skip
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner), st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)  # fmt: skip
SELECTED = st.sampled_from(
    [
        "*",
        "id, blob",
        "id, reward * 2 AS r",
        "camera",
        "*, id % 7 AS m",
        "big, emb[3] AS e, _row_id",
        "flag, extra, added",
    ]
)
ENDS = st.sampled_from(
    [
        "",
        "ORDER BY id, _row_id",
        "ORDER BY reward DESC, id LIMIT 5",
        "ORDER BY camera NULLS FIRST, id DESC LIMIT 9 OFFSET 2",
        "LIMIT 6",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(view=st.sampled_from(VIEWS), selected=SELECTED, condition=FILTERS, end=ENDS)
def test_any_filter_order_and_limit_answer_as_plain_duckdb(
    relations: dict[str, Relation],
    memories: dict[str, pa.Table],
    view: str,
    selected: str,
    condition: str,
    end: str,
) -> None:
    sql = f"SELECT {selected} FROM ds WHERE {condition} {end}"
    found = answered(sql, {"ds": relations[view]})
    assert_same(found, plain(reference(sql), ds=memories[view]), ordered=True)


def test_rows_of_one_relation_are_indices(relations: dict[str, Relation]) -> None:
    view = relations["every second"]
    result = run_sql(
        "SELECT id, reward AS r, id + 1 AS next FROM ds WHERE id < 20 ORDER BY id DESC LIMIT 3", {"ds": view}
    )
    assert result.relation == "ds"
    assert result.rows is not None
    memory = in_memory(view)
    assert (
        memory["id"].take(result.rows).to_pylist()
        == sorted([id for id in memory["id"].to_pylist() if id < 20], reverse=True)[:3]
    )
    assert [type(column).__name__ for column in result.columns] == ["TableColumn", "TableColumn", "ComputedColumn"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, count(*) OVER (PARTITION BY label) AS n FROM ds",
        "SELECT id FROM ds WHERE id IN (SELECT added FROM ds) LIMIT 12",
        "WITH c AS (SELECT *, sum(reward) OVER (PARTITION BY camera) AS s FROM ds) SELECT id, s FROM c",
        "SELECT id FROM ds SEMI JOIN (SELECT added FROM ds) x ON ds.id = x.added",
    ],
)
def test_rows_without_an_order_come_in_the_order_of_the_view(relations: dict[str, Relation], sql: str) -> None:
    result = run_sql(sql, {"ds": relations["shuffled with repeats"]})
    assert result.rows is not None
    assert (np.diff(result.rows) > 0).all()


def test_an_order_of_an_inner_query_is_kept(relations: dict[str, Relation]) -> None:
    sources = {"ds": relations["all"]}
    found = answered("WITH c AS (SELECT id FROM ds ORDER BY id DESC) SELECT id FROM c", sources)
    assert found == sorted(found, reverse=True)
