"""SQL over several tables."""

from collections.abc import Iterable, Mapping

from penstock.dataset._questions import MEMORY_LIMIT, TIMEOUT_S, ask, query_limits
from penstock.dataset._view import View
from penstock.errors import InvalidInputError
from penstock.query import Params, Udf


def sql(
    sql: str,
    params: Params = None,
    *,
    functions: Iterable[Udf] = (),
    timeout_s: float | None = TIMEOUT_S,
    memory_limit: int | str = MEMORY_LIMIT,
    exact: bool = False,
    **tables: View,
) -> View:
    """A view of the answer to one SELECT over several tables or views.

    `penstock.sql("SELECT … FROM a JOIN b …", a=ds, b=other)` names them by keywords.

    Rows of one table, each at most once, stay where they are, with computed columns in memory; any other result is a
    table in memory. The options are those of `View.query`.
    """
    return query_tables(
        sql, tables, params, functions=functions, timeout_s=timeout_s, memory_limit=memory_limit, exact=exact
    )


def query_tables(
    sql: str,
    tables: Mapping[str, View],
    params: Params = None,
    *,
    functions: Iterable[Udf] = (),
    timeout_s: float | None = TIMEOUT_S,
    memory_limit: int | str = MEMORY_LIMIT,
    exact: bool = False,
) -> View:
    """`sql` for tables of any name."""
    for name, table in tables.items():
        if not isinstance(table, View):
            raise InvalidInputError(f"{name} is a {type(table).__name__}; tables in SQL are datasets and views")
    limits = query_limits(timeout_s, memory_limit)
    relations = {name: table._relation() for name, table in tables.items()}
    return View._of(ask(sql, relations, params, functions=functions, limits=limits, exact=exact), sql)
