"""Parameters of a question: values, and never text of SQL."""

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from penstock.errors import InvalidInputError
from penstock.format.kinds import to_numpy

Params: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
"""Values by position for `?` and `$1`, or by name for `$name`."""

_SCALARS = (
    bool, int, float, str, bytes, decimal.Decimal, uuid.UUID,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


def named_params(params: Params) -> dict[str, Any]:
    """Parameters by the name that SQL uses: `1`, `2`, … for positions."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {str(name): value for name, value in params.items()}
    if isinstance(params, str | bytes):
        raise InvalidInputError("params is a list of values or a mapping from names to values; write [value] for one")
    if isinstance(params, np.ndarray) and params.ndim == 1:
        raise InvalidInputError("params is a list of values; write [vector] to pass one vector")
    return {str(index): value for index, value in enumerate(params, 1)}


def engine_value(name: str, value: Any) -> Any:
    """A parameter as DuckDB takes it; raises `InvalidInputError` for one that is not a value."""
    value = to_numpy(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, list | tuple):
        return [engine_value(name, each) for each in value]
    if isinstance(value, dict):
        return {str(key): engine_value(name, each) for key, each in value.items()}
    raise InvalidInputError(
        f"parameter {name} is a {type(value).__name__}; parameters are numbers, texts, bytes, times, lists and arrays"
    )
