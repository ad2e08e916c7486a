"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.indexes import IndexInfo, carry_indexes, create_index, drop_index, extend_indexes, list_indexes
from penstock.query.search import Ranked, Scores

__all__ = [
    "IndexInfo",
    "Ranked",
    "Scores",
    "carry_indexes",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
]
