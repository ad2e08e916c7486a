"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.indexes import IndexInfo, carry_indexes, create_index, drop_index, extend_indexes, list_indexes
from penstock.query.scan import Derived, Relation, ScanTrace, TableScan
from penstock.query.search import Ranked, Scores, TextScores
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
    "IndexInfo",
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
    "TextScores",
    "Udf",
    "carry_indexes",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
    "run_sql",
    "udf",
]
