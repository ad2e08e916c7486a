"""Search indexes on object storage: sorted Arrow tables in pages, read by ranges."""

from penstock.query.indexes._catalog import (
    IndexInfo,
    carry_indexes,
    create_index,
    drop_index,
    extend_indexes,
    list_indexes,
)
from penstock.query.indexes._filters import ScalarAnswer, answer_filter
from penstock.query.indexes._kind import KEY, IndexKind, Run, TableLayout
from penstock.query.indexes._open import OpenIndex, Segment, open_index
from penstock.query.indexes._pages import PagedTable, PageRead, read_pages_of

__all__ = [
    "KEY",
    "IndexInfo",
    "IndexKind",
    "OpenIndex",
    "PageRead",
    "PagedTable",
    "Run",
    "ScalarAnswer",
    "Segment",
    "TableLayout",
    "answer_filter",
    "carry_indexes",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
    "open_index",
    "read_pages_of",
]
