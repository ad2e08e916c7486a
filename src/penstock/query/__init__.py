"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.scan import Derived, Relation, ScanTrace, TableScan
from penstock.query.search import Ranked, Scores
from penstock.query.sql import (
    ComputedColumn,
    HandleColumn,
    MakeScores,
    Params,
    QueryLimits,
    QueryResult,
    ResultColumn,
    TableColumn,
    Udf,
    run_sql,
    udf,
)

__all__ = [
    "ComputedColumn",
    "Derived",
    "HandleColumn",
    "MakeScores",
    "Params",
    "QueryLimits",
    "QueryResult",
    "Ranked",
    "Relation",
    "ResultColumn",
    "ScanTrace",
    "Scores",
    "TableColumn",
    "TableScan",
    "Udf",
    "run_sql",
    "udf",
]
