"""Text, bytes and JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import pyarrow as pa

from penstock.format.kinds._kind import BadValueError, Kind, Values, binary_array, check_types


@dataclass(frozen=True)
class Text(Kind):
    """A string."""

    name: ClassVar[str] = "text"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        check_types(values, str, "a string")
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError as error:
            index = next(i for i, value in enumerate(values) if value is not None and not _is_unicode(value))
            raise BadValueError(index, f"not valid Unicode: {error.reason}") from None

    def to_values(self, array: pa.Array) -> Values:
        return list(array.to_pylist())

    def to_json(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Bytes(Kind):
    """Uninterpreted bytes."""

    name: ClassVar[str] = "bytes"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        check_types(values, (bytes, bytearray, memoryview), "bytes")
        return binary_array(list(values))

    def to_values(self, array: pa.Array) -> Values:
        return list(array.to_pylist())

    def to_json(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Json(Kind):
    """A JSON value: a dictionary, list, string, number, true or false.

    None is a null of the column, as in every other kind, and not the JSON null.
    """

    name: ClassVar[str] = "json"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        return pa.array([self._dump(index, value) for index, value in enumerate(values)], pa.string())

    def to_values(self, array: pa.Array) -> Values:
        return [None if text is None else json.loads(text) for text in array.to_pylist()]

    def invalid_reason(self, array: pa.Array) -> str | None:
        try:
            self.to_values(array)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {}

    def _dump(self, index: int, value: Any) -> str | None:
        if value is None:
            return None
        try:
            _check_keys(value)
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadValueError(index, f"cannot be written as JSON: {error}") from None
        return text


def _check_keys(value: Any) -> None:
    """Raise `TypeError` for keys that JSON would convert to strings, where 1 and "1" would collide."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a string")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
