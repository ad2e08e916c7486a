"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.scan import Derived, Relation, ScanTrace, TableScan
from penstock.query.search import Ranked, Scores
from penstock.query.sql import (
    ComputedColumn,
    Explanation,
    HandleColumn,
    MakeScores,
    Params,
    QueryLimits,
    QueryResult,
    RelationPlan,
    ResultColumn,
    TableColumn,
    Udf,
    explain_sql,
    run_sql,
    udf,
)

__all__ = [
    "ComputedColumn",
    "Derived",
    "Explanation",
    "HandleColumn",
    "MakeScores",
    "Params",
    "QueryLimits",
    "QueryResult",
    "Ranked",
    "Relation",
    "RelationPlan",
    "ResultColumn",
    "ScanTrace",
    "Scores",
    "TableColumn",
    "TableScan",
    "Udf",
    "explain_sql",
    "run_sql",
    "udf",
]
