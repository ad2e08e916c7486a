"""The tables that SQL names."""

import pytest

from penstock.errors import InvalidInputError
from penstock.query import table_names


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1", []),
        ("FROM x", ["x"]),
        ('SELECT * FROM a AS one JOIN "b-2" two USING (id), A', ["a", "b-2"]),
        ("SELECT (SELECT max(y) FROM c) FROM a WHERE y IN (FROM b UNION ALL FROM d)", ["a", "b", "c", "d"]),
        ("WITH q AS (SELECT * FROM a), r AS (FROM q) SELECT * FROM r JOIN Q USING (id)", ["a"]),
        ("WITH a AS (SELECT * FROM a) FROM a", ["a"]),  # WITH refers to the table
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r", []),
        ("WITH q AS (SELECT 1), r AS (WITH q AS (FROM a) FROM q) FROM q, r, (FROM b)", ["a", "b"]),
        ("SELECT * FROM (WITH q AS (SELECT 1) FROM q), q", ["q"]),
        ("SELECT * FROM range(3), unnest([1]), (VALUES (1))", []),
        ("FROM other.table1", []),  # no relation has a schema
    ],
)
def test_tables_are_found_without_the_queries_of_with(sql: str, names: list[str]) -> None:
    assert sorted(table_names(sql)) == names


@pytest.mark.parametrize("sql", ["", "SELEC 1", "DROP TABLE x", "SELECT 1; SELECT 2"])
def test_only_one_select_is_accepted(sql: str) -> None:
    with pytest.raises(InvalidInputError):
        table_names(sql)
