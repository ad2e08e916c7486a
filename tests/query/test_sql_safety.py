"""A question cannot read files, settings or the environment, change anything, or outlive its limits."""

import os
import signal
import threading
import time
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInputError, NotFoundError, PenstockError
from penstock.query import QueryLimits, run_sql, udf
from tests.query.tables import as_table, make_table, relation

HOSTILE = [
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('s3://bucket/x')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('ds')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM main.ds",
    "SELECT * FROM pragma_version()",
    'SELECT * FROM "~scan.ds"',
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "WITH x AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM x",
    "SELECT id FROM ds WHERE id IN (SELECT 1 FROM glob('*'))",
    "SELECT id FROM ds ORDER BY (SELECT count(*) FROM glob('*'))",
    "SELECT id FROM ds LIMIT (SELECT count(*) FROM glob('*'))",
    "SELECT getenv('HOME')",
    "SELECT current_setting('memory_limit')",
    "SELECT getvariable('x')",
    "SELECT system.main.getvariable('x')",
    "SELECT version()",
    "SELECT current_database()",
    "SELECT nextval('s')",
    "SELECT write_log('x')",
    "SELECT json_execute_serialized_sql('{}')",
    "SET memory_limit = '10GB'",
    "RESET memory_limit",
    "PRAGMA enable_profiling",
    "ATTACH '/tmp/x.db'",
    "COPY ds TO '/tmp/x.csv'",
    "EXPORT DATABASE '/tmp/x'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CREATE TABLE t AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE MACRO f() AS 1",
    "DROP VIEW ds",
    "INSERT INTO ds VALUES (1)",
    "UPDATE ds SET id = 1",
    "DELETE FROM ds",
    "CHECKPOINT",
    "CALL pragma_version()",
    "EXPLAIN SELECT 1",
    "DESCRIBE ds",
    "SHOW TABLES",
    "SUMMARIZE ds",
    "PIVOT ds ON label USING count(*)",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW ds",
    "",
    ";",
    "SELECT id FROM ds AT (VERSION => 1)",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "BEGIN",
    "SELECT * FROM ds, LATERAL (SELECT * FROM read_text('/etc/passwd'))",
    "SELECT ds FROM ds",
    "SELECT #1 FROM ds",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT '" + "x" * (1 << 20) + "'",
]


@pytest.fixture(scope="module")
def source() -> Any:
    return {"ds": relation(make_table())}


@pytest.mark.parametrize("sql", HOSTILE, ids=[sql[:50] for sql in HOSTILE])
def test_hostile_sql_is_refused(source: Any, sql: str) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)) as caught:
        run_sql(sql, source)
    assert "Error:" not in str(caught.value)
    assert "root:" not in str(caught.value)


@pytest.mark.parametrize("value", ["'; DROP VIEW ds; --", "' OR 1=1 --", "cam0' UNION SELECT 1 --", "\x00", "$1"])
def test_a_parameter_is_only_a_value(source: Any, value: str) -> None:
    assert len(run_sql("SELECT id FROM ds WHERE camera = ?", source, [value])) == 0
    [[found]] = as_table(run_sql("SELECT $x AS x", source, {"x": value}), source).to_pydict().values()
    assert found == value


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 1, open])
def test_a_parameter_that_is_no_value_is_refused(source: Any, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="parameters are numbers"):
        run_sql("SELECT id FROM ds WHERE camera = ?", source, [value])


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT id FROM ds WHERE id = ?", None),
        ("SELECT id FROM ds WHERE id = ?", [1, 2]),
        ("SELECT id FROM ds WHERE id = $a", {"b": 1}),
        ("SELECT id FROM ds WHERE id = $a", {"a": 1, "b": 1}),
        ("SELECT id FROM ds", "text"),
    ],
)
def test_parameters_must_match(source: Any, sql: str, params: Any) -> None:
    with pytest.raises(InvalidInputError, match="param"):
        run_sql(sql, source, params)


BOMBS = [
    "SELECT count(*) FROM ds a, ds b, ds c, ds d, ds e",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
    "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
]


@pytest.mark.parametrize("sql", BOMBS)
def test_a_time_limit_ends_a_question(source: Any, sql: str) -> None:
    start = time.monotonic()
    with pytest.raises(InvalidInputError, match=r"longer than its limit of 0\.2 s"):
        run_sql(sql, source, limits=QueryLimits(time_s=0.2))
    assert time.monotonic() - start < 30  # of a machine with other work; a second by itself


def test_a_question_can_be_cancelled(source: Any) -> None:
    cancel = threading.Event()
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(InvalidInputError, match="cancelled"):
        run_sql(BOMBS[0], source, cancel=cancel)


def test_ctrl_c_ends_a_question(source: Any) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run_sql(BOMBS[0], source)
    assert len(run_sql("SELECT id FROM ds LIMIT 1", source)) == 1


@pytest.mark.parametrize(
    "sql", ["SELECT list(range) FROM range(100000000)", "SELECT a.range FROM range(100000000) a ORDER BY hash(a.range)"]
)
def test_a_memory_limit_ends_a_question(source: Any, sql: str) -> None:
    with pytest.raises(InvalidInputError, match="memory"):
        run_sql(sql, source, limits=QueryLimits(memory_bytes=32 << 20, threads=1))


def test_a_result_larger_than_the_memory_limit_is_refused(source: Any) -> None:
    sql = "SELECT repeat('x', 1000) AS t FROM range(100000)"
    with pytest.raises(InvalidInputError, match="memory"):
        run_sql(sql, source, limits=QueryLimits(memory_bytes=32 << 20, threads=1))


def test_questions_leave_nothing_behind(source: Any) -> None:
    """Not even after one that failed."""
    double = udf(lambda x: x, returns="int64", name="same")
    run_sql("SELECT same(id) AS x FROM ds", source, functions=[double])
    for sql in ("SELECT same(id) FROM ds", "SELECT * FROM other"):
        with pytest.raises(NotFoundError):
            run_sql(sql, source)


def test_questions_of_many_threads_do_not_meet(source: Any) -> None:
    found: list[Any] = []

    def ask(number: int) -> None:
        plus = udf(lambda x: [value.as_py() + number for value in x], returns="int64", name="plus")
        table = as_table(run_sql("SELECT plus(id) AS x FROM ds LIMIT 1", source, functions=[plus]), source)
        found.append((number, table["x"][0].as_py()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(number, number) for number in range(6)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_ask(source: Any) -> None:
    assert len(run_sql("SELECT id FROM ds LIMIT 1", source)) == 1
    child = os.fork()
    if not child:
        os._exit(0 if len(run_sql("SELECT id FROM ds WHERE id < 3", source)) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT rewrd FROM ds", r"no column 'rewrd'; did you mean 'reward'\? \(at character 8\)\n"),
        ("SELECT rewrd FROM ds", r"\n  SELECT rewrd FROM ds\n         \^{5}$"),
        ("SELECT\n  rewrd FROM ds", r"\(at character 10\)\n    rewrd FROM ds\n    \^{5}$"),
        ("SELECT d.rewrd FROM ds d", "no column in d: 'rewrd'; did you mean 'reward'"),
        ("SELECT 'é', rewrd FROM ds", r"\(at character 13\)\n  SELECT 'é', rewrd FROM ds\n              \^{5}$"),
        ("SELECT avgg(id) FROM ds", r"no function 'avgg'; did you mean 'avg'"),
        ("SELECT id FROM dss", r"no relation 'dss'; did you mean 'ds'\?"),
        ("SELECT cosine_similarty(emb, [1]) FROM ds", "did you mean 'cosine_similarity'"),
        ("SELECT id FROM ds WHERE label = 'grsp'", "no class 'grsp'; did you mean 'grasp'"),
        ("SELECT id FROM ds WHERE label IN ('push', 'x')", "no class 'x'; there are grasp, lift, pull, push"),
        ("SELECT id FROM ds a, ds b", "'id' is ambiguous: it can be a.id and b.id"),
        ("SELECT id FROM ds ORDER BY 4", "ORDER BY 4: there are 1 columns"),
        ("SELECT * EXCLUDE (idd) FROM ds", "no column 'idd'; did you mean 'id'"),
        ("SELECT x.* FROM ds", "no relation 'x'"),
        ("SELEC id FROM ds", r"cannot be parsed.*at character 1\)"),
        ("SELECT id FROM ds WHERE camera + 1 = 2 AND id = 'x'", "not valid here"),
        ("SELECT shape(camera) FROM ds", "shape needs a column of tensors or images; camera is text"),
        ("SELECT label_name(id) FROM ds", "label_name needs a label column"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_near_matches(source: Any, sql: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        run_sql(sql, source)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ds: ds.where("observation.state > 0"),
        lambda ds: ds.query("SELECT Observation.State FROM ds"),
        lambda ds: ds.query("SELECT d.observation.state.x FROM ds d"),
        lambda ds: ds.order_by("observation.state"),
    ],
)
def test_a_name_with_dots_is_to_be_quoted(ask: Any) -> None:
    ds = penstock.create("memory://", {"observation.state": "float32"})
    ds.append({"observation.state": [1.0]})
    ds.commit()
    with pytest.raises(NotFoundError, match=r'needs double quotes in SQL, "observation.state"'):
        ask(ds)
    with pytest.raises(NotFoundError, match=r'did you mean "observation.state"'):
        ds.where("observation = 1")
    assert len(ds.where('"observation.state" > 0')) == 1
