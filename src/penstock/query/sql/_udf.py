"""Functions of the user in SQL, over Arrow arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa

from penstock.errors import InvalidInputError

_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
_TYPES: dict[str, pa.DataType] = {
    **{name: getattr(pa, name)() for name in _NUMBERS},
    "bool": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.large_binary(),
}


@dataclass(frozen=True)
class Udf:
    """A function that SQL can call by its name."""

    name: str
    function: Callable[..., Any]
    """Takes Arrow arrays of one length, one for each argument, and returns an array of that length.

    A column of media arrives as encoded bytes, a tensor as lists.
    """
    returns: pa.DataType

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InvalidInputError(f"a function in SQL is named by letters, digits and _, not {self.name!r}")

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def apply(self, arguments: Sequence[pa.Array]) -> pa.Array:
        """The results for some rows; raises `InvalidInputError` that names the function if it fails."""
        try:
            found = self.function(*arguments)
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks()
            if not isinstance(found, pa.Array):
                found = pa.array(found)
            found = found if found.type == self.returns else found.cast(self.returns)
        except Exception as error:
            raise InvalidInputError(f"the function {self.name} failed: {type(error).__name__}: {error}") from error
        if arguments and len(found) != len(arguments[0]):
            raise InvalidInputError(
                f"the function {self.name} returned {len(found)} values for {len(arguments[0])} rows"
            )
        return found


@overload
def udf(function: None = None, *, returns: str | pa.DataType, name: str | None = None) -> Callable[[Any], Udf]: ...
@overload
def udf(function: Callable[..., Any], *, returns: str | pa.DataType, name: str | None = None) -> Udf: ...
def udf(
    function: Callable[..., Any] | None = None, *, returns: str | pa.DataType, name: str | None = None
) -> Udf | Callable[[Any], Udf]:
    """Make a function callable in SQL: `@penstock.udf(returns="float32")`, then `ds.query(…, functions=[it])`.

    The function takes Arrow arrays of the same length, one for each argument, and returns one array or anything that
    `pyarrow.array` takes. Columns of media arrive as encoded bytes, tensors as lists. `returns` is a type of Arrow, or
    its name: "float32", "int64", "bool", "text", "bytes".
    """
    if function is None:
        return lambda given: udf(given, returns=returns, name=name)
    if isinstance(returns, str):
        if returns not in _TYPES:
            raise InvalidInputError(f"{returns!r} is not a type of a function's result; there are {', '.join(_TYPES)}")
        returns = _TYPES[returns]
    return Udf(name or str(getattr(function, "__name__", "function")), function, returns)
