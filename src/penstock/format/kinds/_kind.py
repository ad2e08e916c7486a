"""The base class of kinds, and helpers for Arrow arrays."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, UnsupportedFormatError
from penstock.types import SMALL_FLOATS

Values: TypeAlias = npt.NDArray[Any] | list[Any]
"""Rows of one column: an array if all rows have the same shape, else a list with one item per row."""


class BadValueError(InvalidInputError):
    """A value does not fit its column; `index` is its index in the input."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadValueError"], tuple[int, str]]:
        return BadValueError, (self.index, self.reason)


KINDS: dict[str, "type[Kind]"] = {}
"""Every kind by its name in schemas."""


class Kind(ABC):
    """The value type of a column, and its conversion to and from Arrow arrays.

    Kinds are small frozen dataclasses. `to_values` is the inverse of `to_array`.
    """

    name: ClassVar[str]
    """The name in schemas; never changes once released."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.name] = cls

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the column in data files."""

    @abstractmethod
    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Encode values; None becomes null. Raises `BadValueError` for a value that does not fit."""

    @abstractmethod
    def to_values(self, array: pa.Array) -> Values:
        """Decode an array of `arrow_type`; nulls become None in lists and zeros in arrays."""

    def invalid_reason(self, array: pa.Array) -> str | None:  # noqa: ARG002
        """Why a foreign array of `arrow_type` is invalid for this kind; None if it is valid."""
        return None

    def corrupt_reason(self, array: pa.Array) -> str | None:  # noqa: ARG002
        """Why a stored array, valid as Arrow data, cannot be decoded by `to_values`; None if it can.

        Called for every page that is parsed, so it looks at lengths and never at each element.
        """
        return None

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The parameters of this kind in a schema, without its name."""

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> "Kind":
        """Inverse of `to_json`; unknown parameters are ignored."""
        names = {member.name for member in fields(cls)}  # type: ignore[arg-type]  # every kind is a dataclass
        return cls(**{name: value for name, value in parameters.items() if name in names})

    @property
    def fixed_row_bytes(self) -> int | None:
        """Bytes per row of fixed-width values, else None."""
        return None

    def decoded_bytes(self, array: pa.Array) -> int | None:  # noqa: ARG002
        """Approximate bytes of an array's values once decoded, from their headers; None for kinds without them."""
        return None

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value}" for key, value in self.to_json().items() if value not in (None, []))
        return f"{self.name}({inner})" if inner else self.name


def corrupt_struct_reason(array: pa.Array, *, required: Sequence[str], lengths: Sequence[str]) -> str | None:
    """Why rows of a struct are invalid: a required member is null, or a length negative; None if they are valid."""
    present = array.drop_null()
    for name in required:
        if present.field(name).null_count:
            return f"{name!r} is null"
    total = np.zeros(len(present), np.float64)
    for name in lengths:
        values = np.asarray(present.field(name))
        if (values < 0).any():
            return f"{name!r} is negative"
        total += values
    return "a range ends after 2^63 bytes" if (total >= 2.0**63).any() else None


def as_shape(given: Any) -> tuple[int | None, ...]:
    """Parse a shape; raises `InvalidInputError`."""
    try:
        return tuple(None if length is None else operator.index(length) for length in given)
    except TypeError:
        raise InvalidInputError(f"a shape is a tuple of lengths, not {given!r}") from None


def to_numpy(values: Any) -> Any:
    """Values with tensors of other libraries (torch, jax, …) as numpy arrays: a column, or the rows of one."""
    if isinstance(values, np.ndarray):
        return values
    if _is_tensor(values):
        return _tensor_to_numpy(values)
    if isinstance(values, list | tuple) and any(map(_is_tensor, values)):
        return [_tensor_to_numpy(value) if _is_tensor(value) else value for value in values]
    return values


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of another library; Arrow arrays have no dtype."""
    return hasattr(value, "__dlpack__") and hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)


def _tensor_to_numpy(tensor: Any) -> npt.NDArray[Any]:
    for step in ("detach", "cpu"):
        tensor = getattr(tensor, step)() if hasattr(tensor, step) else tensor
    name = str(tensor.dtype).removeprefix("torch.")
    if name in SMALL_FLOATS and hasattr(tensor, "float"):  # numpy has no such dtype, and float32 holds it exactly
        return np.asarray(tensor.float()).astype(SMALL_FLOATS[name])
    return np.asarray(tensor)


def validity_bitmap(nulls: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bitmap; None if no row is null."""
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None


def drop_nulls(array: pa.Array) -> pa.Array:
    """An array without its nulls."""
    if array.null_count == len(array):  # drop_null fails for some nested types; slice does not
        return array.slice(0, 0)
    return array.drop_null() if array.null_count else array


def null_mask(values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A mask of the values that are None."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return np.zeros(len(values), bool)
    return np.fromiter((value is None for value in values), bool, len(values))


def check_types(values: Sequence[Any] | npt.NDArray[Any], accepted: type | tuple[type, ...], expected: str) -> None:
    """Raise `BadValueError` for the first value that is neither None nor of an accepted type."""
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, accepted):
            raise BadValueError(index, f"expected {expected}, got {type(value).__name__}")


def binary_array(values: Sequence[bytes | bytearray | memoryview | None]) -> pa.Array:
    """Bytes as an Arrow array, with one copy; Arrow's own builder copies repeatedly as it grows."""
    parts = [b"" if value is None else _contiguous(value) for value in values]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.nbytes if isinstance(part, memoryview) else len(part) for part in parts], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidInputError(f"{offsets[-1]} bytes exceed the 2 GiB limit of one array; write fewer rows at a time")
    nulls = null_mask(values)
    buffers = [validity_bitmap(nulls), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers, int(nulls.sum()))


def _contiguous(value: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    return value.tobytes() if isinstance(value, memoryview) and not value.c_contiguous else value


def kind_to_json(kind: Kind) -> dict[str, Any]:
    """A kind with its name, as stored in a schema."""
    return {"kind": kind.name, **kind.to_json()}


def kind_from_json(described: Mapping[str, Any]) -> Kind:
    """Inverse of `kind_to_json`; raises `UnsupportedFormatError` for an unknown kind or dtype."""
    parameters = dict(described)
    name = parameters.pop("kind")
    if name not in KINDS:
        raise UnsupportedFormatError(
            f"this table has a column of kind {name!r}, which this version does not support; upgrade Penstock"
        )
    try:
        return KINDS[name].from_json(parameters)
    except InvalidInputError as error:  # such as a dtype of a later version
        raise UnsupportedFormatError(f"this version cannot read a {name} column of this table: {error}") from error
