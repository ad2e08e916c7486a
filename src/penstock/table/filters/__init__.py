"""Filters: Arrow expressions as trees, and what bounds of columns say about them."""

from penstock.table.filters._bounds import Bounds, ColumnBounds, nulls_or_nat, typed_bounds, widened
from penstock.table.filters._expression import (
    Call,
    FieldRef,
    Literal,
    Term,
    field_names,
    parse_expression,
    referenced_columns,
)
from penstock.table.filters._truth import may_match

__all__ = [
    "Bounds",
    "Call",
    "ColumnBounds",
    "FieldRef",
    "Literal",
    "Term",
    "field_names",
    "may_match",
    "nulls_or_nat",
    "parse_expression",
    "referenced_columns",
    "typed_bounds",
    "widened",
]
