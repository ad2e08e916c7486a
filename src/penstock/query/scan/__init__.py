"""Tables as query engines read them: projections and filters pushed down to pages."""

from penstock.query.scan._arrow import column_array, column_type
from penstock.query.scan._dataset import as_dataset
from penstock.query.scan._relation import HIDDEN, ROW, Derived, Relation, is_heavy
from penstock.query.scan._scan import TableScan, handle_column, handle_member
from penstock.query.scan._trace import RelationTrace, ScanTrace

__all__ = [
    "HIDDEN",
    "ROW",
    "Derived",
    "Relation",
    "RelationTrace",
    "ScanTrace",
    "TableScan",
    "as_dataset",
    "column_array",
    "column_type",
    "handle_column",
    "handle_member",
    "is_heavy",
]
