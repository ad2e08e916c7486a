"""Map and measure the leaves of nested batches."""

from collections.abc import Callable
from copy import copy
from typing import Any


def map_leaves(fn: Callable[[Any], Any], value: Any, *, leaf_type: type | None = None) -> Any:
    """Apply `fn` to the leaves of nested dictionaries, lists and tuples; values of type `leaf_type` are leaves too."""
    if leaf_type is not None and isinstance(value, leaf_type):
        return fn(value)
    if isinstance(value, dict):
        mapped = {key: map_leaves(fn, inner, leaf_type=leaf_type) for key, inner in value.items()}
        if type(value) is dict:
            return mapped
        same = copy(value)
        same.update(mapped)
        return same
    if type(value) in (list, tuple):
        return type(value)(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value)
    if type(value).__bases__ == (tuple,) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value))
    return fn(value)


def array_bytes(value: Any) -> int:
    """Bytes of the arrays and tensors in nested dictionaries, lists and tuples; other values count as nothing."""
    if isinstance(value, dict):
        return sum(map(array_bytes, value.values()))
    if isinstance(value, list | tuple):
        return 0 if value and isinstance(value[0], str | bytes | int | float) else sum(map(array_bytes, value))
    return int(getattr(value, "nbytes", 0))
