"""Run statements in DuckDB: sandboxed connections, limits, and a process for what the engine does not bound."""

from penstock.query.sql.execution._bounded import is_bounded
from penstock.query.sql.execution._connection import (
    QueryLimits,
    RunOptions,
    Work,
    connected,
    import_duckdb,
    run_interruptibly,
)
from penstock.query.sql.execution._process import run_apart
from penstock.query.sql.execution._statement import Apply, Statement

__all__ = [
    "Apply",
    "QueryLimits",
    "RunOptions",
    "Statement",
    "Work",
    "connected",
    "import_duckdb",
    "is_bounded",
    "run_apart",
    "run_interruptibly",
]
