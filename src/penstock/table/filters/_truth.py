"""Which values a filter can have, given bounds of its columns: true, false, null, or several of them.

Everything that is not known here can have all three. Comparisons are made by Arrow's own functions, on the bounds, so
that values and bounds are converted to a common type in the same way.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.table.filters._bounds import Bounds, ColumnBounds, Mask
from penstock.table.filters._expression import Call, FieldRef, Literal, Term

_NOT_COMPARABLE = (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError, AttributeError)


class Truth(NamedTuple):
    """Whether a term can be true, false and null in each part."""

    true: Mask
    false: Mask
    null: Mask


def may_match(filter: Term, bounds: Bounds, parts: int) -> Mask:
    """Whether a row of each part may match."""
    return _truth(filter, bounds, parts).true


def _truth(term: Term, bounds: Bounds, parts: int) -> Truth:
    anything = Truth(*(np.ones(parts, bool) for _ in range(3)))
    if isinstance(term, Call):
        if term.function in _CONNECTIVES and term.arguments:
            return reduce(_CONNECTIVES[term.function], (_truth(each, bounds, parts) for each in term.arguments))
        if term.function == "invert" and len(term.arguments) == 1:
            true, false, null = _truth(term.arguments[0], bounds, parts)
            return Truth(false, true, null)
        if term.function == "if_else" and len(term.arguments) == 3:
            return _if_else(*(_truth(each, bounds, parts) for each in term.arguments))
        operands = [_operand(each, bounds, parts) for each in term.arguments]
        if term.function in _PREDICATES and operands and None not in operands:
            try:
                return _PREDICATES[term.function](term, *operands)
            except _NOT_COMPARABLE:
                return anything
        return anything
    if isinstance(term, Literal) and not term.value.is_valid:
        nothing = np.zeros(parts, bool)
        return Truth(nothing, nothing, ~nothing)
    operand = _operand(term, bounds, parts)
    if operand is None or not pa.types.is_boolean(operand.low.type):
        return anything
    true, false = _possible(operand.high, parts), _possible(pc.invert(operand.low), parts)
    return Truth(true & operand.values, false & operand.values, operand.nulls)


def _operand(term: Term, bounds: Bounds, parts: int) -> ColumnBounds | None:
    """The bounds of a column or a literal; None for anything else."""
    if isinstance(term, FieldRef) and len(term.path) == 1:
        return bounds.get(term.path[0])
    if isinstance(term, Literal):
        value, some = term.value, np.full(parts, term.value.is_valid)
        if pa.types.is_floating(value.type) and value.is_valid and np.isnan(value.as_py()):
            value = pa.scalar(None, value.type)  # no order: unknown
        return ColumnBounds(value, value, ~some, some)
    return None


def _possible(found: Any, parts: int) -> Mask:
    """The result of a comparison of bounds as a mask; an unknown bound allows everything."""
    if isinstance(found, pa.Scalar):
        return np.full(parts, found.as_py() is not False)
    return np.asarray(pc.fill_null(found, True))


def _and(one: Truth, other: Truth) -> Truth:
    return Truth(one.true & other.true, one.false | other.false, one.null | other.null)


def _or(one: Truth, other: Truth) -> Truth:
    return Truth(one.true | other.true, one.false & other.false, one.null | other.null)


def _if_else(condition: Truth, then: Truth, otherwise: Truth) -> Truth:
    """As engines write `IN`, which is null for null."""
    chosen = [(condition.true & one) | (condition.false & other) for one, other in zip(then, otherwise, strict=True)]
    return Truth(chosen[0], chosen[1], chosen[2] | condition.null)


def _compared(
    one: ColumnBounds,
    other: ColumnBounds,
    compare: Callable[[Callable[[Callable[..., Any], Any, Any], Mask]], tuple[Mask, Mask]],
) -> Truth:
    parts = len(one.nulls)
    true, false = compare(lambda function, a, b: _possible(function(a, b), parts))
    both = one.values & other.values
    return Truth(true & both, false & both, one.nulls | other.nulls)


def _less(_: Call, one: ColumnBounds, other: ColumnBounds) -> Truth:
    return _compared(
        one, other, lambda is_: (is_(pc.less, one.low, other.high), is_(pc.greater_equal, one.high, other.low))
    )


def _less_equal(_: Call, one: ColumnBounds, other: ColumnBounds) -> Truth:
    return _compared(
        one, other, lambda is_: (is_(pc.less_equal, one.low, other.high), is_(pc.greater, one.high, other.low))
    )


def _equal(_: Call, one: ColumnBounds, other: ColumnBounds) -> Truth:
    return _compared(
        one,
        other,
        lambda is_: (
            is_(pc.less_equal, one.low, other.high) & is_(pc.greater_equal, one.high, other.low),
            is_(pc.not_equal, one.low, other.high) | is_(pc.not_equal, one.high, other.low),
        ),
    )


def _not_equal(call: Call, one: ColumnBounds, other: ColumnBounds) -> Truth:
    true, false, null = _equal(call, one, other)
    return Truth(false, true, null)


def _is_null(call: Call, one: ColumnBounds) -> Truth:
    nan = call.options.get("nan_is_null")
    not_a_number = pa.types.is_floating(one.low.type) and (nan is None or nan.as_py() is not False)
    return Truth(one.nulls | (one.values & not_a_number), one.values, np.zeros_like(one.nulls))


def _is_valid(_: Call, one: ColumnBounds) -> Truth:
    return Truth(one.values, one.nulls, np.zeros_like(one.nulls))


def _is_in(call: Call, one: ColumnBounds) -> Truth:
    parts, wanted = len(one.nulls), call.options["value_set"].values
    valid = wanted.drop_null()
    null = one.nulls if wanted.null_count else np.zeros(parts, bool)
    kind = one.low.type
    if not len(valid):
        return Truth(null, np.ones(parts, bool), one.nulls)
    if pa.types.is_floating(valid.type):
        valid = valid.filter(pc.is_finite(valid))
        if len(valid) < len(wanted) - wanted.null_count:
            raise ValueError("NaN and infinities have no bounds")
    values = sorted(_plain(valid.cast(kind), kind))
    low, high = _plain(one.low, kind), _plain(one.high, kind)
    some = [
        (a is None or bisect_left(values, a) < len(values)) and (b is None or bisect_right(values, b) > 0)
        if a is None or b is None
        else bisect_left(values, a) < bisect_right(values, b)
        for a, b in zip(low, high, strict=True)
    ]
    return Truth((np.array(some, bool) & one.values) | null, np.ones(parts, bool), one.nulls)


def _plain(array: Any, kind: pa.DataType) -> list[Any]:
    """Values that Python compares as Arrow does."""
    found: list[Any] = (array.view(pa.int64()) if pa.types.is_temporal(kind) else array).to_pylist()
    return found


_CONNECTIVES: dict[str, Callable[[Truth, Truth], Truth]] = {
    "and": _and,
    "and_kleene": _and,
    "or": _or,
    "or_kleene": _or,
}
_PREDICATES: dict[str, Callable[..., Truth]] = {
    "equal": _equal,
    "not_equal": _not_equal,
    "less": _less,
    "less_equal": _less_equal,
    "greater": lambda call, one, other: _less(call, other, one),
    "greater_equal": lambda call, one, other: _less_equal(call, other, one),
    "is_null": _is_null,
    "is_valid": _is_valid,
    "is_in": _is_in,
}
