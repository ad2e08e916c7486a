"""SQL over tables: one SELECT, checked, rewritten, and run by DuckDB in a sandbox."""

from penstock.query.sql._explain import Explanation, RelationPlan, explain_sql
from penstock.query.sql._params import Params
from penstock.query.sql._parse import table_names
from penstock.query.sql._result import ComputedColumn, HandleColumn, QueryResult, ResultColumn, TableColumn
from penstock.query.sql._run import Condition, Order, run_sql
from penstock.query.sql._udf import Udf, udf
from penstock.query.sql.execution import QueryLimits
from penstock.query.sql.rewrite import MakeScores

__all__ = [
    "ComputedColumn",
    "Condition",
    "Explanation",
    "HandleColumn",
    "MakeScores",
    "Order",
    "Params",
    "QueryLimits",
    "QueryResult",
    "RelationPlan",
    "ResultColumn",
    "TableColumn",
    "Udf",
    "explain_sql",
    "run_sql",
    "table_names",
    "udf",
]
