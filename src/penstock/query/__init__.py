"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.indexes import IndexInfo, carry_indexes, create_index, drop_index, extend_indexes, list_indexes
from penstock.query.search import Ranked, Scores, TextScores

__all__ = [
    "IndexInfo",
    "Ranked",
    "Scores",
    "TextScores",
    "carry_indexes",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
]
