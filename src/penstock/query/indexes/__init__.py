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
from penstock.query.indexes._vector import (
    FAR_LIST,
    FLOAT32_DTYPES,
    MAX_SQUARE,
    MIN_SQUARE,
    Metric,
    VectorKind,
    check_metric,
    vector_kind,
)

__all__ = [
    "FAR_LIST",
    "FLOAT32_DTYPES",
    "KEY",
    "MAX_SQUARE",
    "MIN_SQUARE",
    "IndexInfo",
    "IndexKind",
    "Metric",
    "OpenIndex",
    "PageRead",
    "PagedTable",
    "Run",
    "ScalarAnswer",
    "Segment",
    "TableLayout",
    "VectorKind",
    "answer_filter",
    "carry_indexes",
    "check_metric",
    "create_index",
    "drop_index",
    "extend_indexes",
    "list_indexes",
    "open_index",
    "read_pages_of",
    "vector_kind",
]
