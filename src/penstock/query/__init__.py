"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.indexes import (
    IndexInfo,
    carry_indexes,
    create_index,
    drop_index,
    extend_indexes,
    list_indexes,
    open_index,
)
from penstock.query.scan import Derived, Relation, ScanTrace, TableScan
from penstock.query.search import Fuse, Ranked, Scores, TextScores, VectorScores, search_top
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
    "Fuse",
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
    "VectorScores",
    "carry_indexes",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
    "open_index",
    "run_sql",
    "search_top",
    "udf",
]
