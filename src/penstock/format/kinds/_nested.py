"""Nested kinds: lists and structs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format.kinds._kind import (
    BadValueError,
    Kind,
    Values,
    drop_nulls,
    kind_from_json,
    kind_to_json,
    null_mask,
    validity_bitmap,
)
from penstock.format.kinds._tensor import nat_as_null


@dataclass(frozen=True)
class List(Kind):
    """A list of values of one kind."""

    of: Kind

    name: ClassVar[str] = "list"

    def __post_init__(self) -> None:
        _check_inner(self.of)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.of.arrow_type)

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        flat: list[Any] = []
        ends = [0]
        owners: list[int] = []
        for index, value in enumerate(values):
            if value is not None:
                if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
                    raise BadValueError(index, f"expected a list, got {type(value).__name__}")
                flat.extend(value)
                owners.extend([index] * len(value))
            ends.append(len(flat))
        try:
            items = nat_as_null(self.of, self.of.to_array(flat))
        except BadValueError as bad:
            raise BadValueError(owners[bad.index], f"in the list: {bad.reason}") from None
        bitmap = validity_bitmap(null_mask(values))
        offsets = pa.py_buffer(np.array(ends, np.int32))
        return pa.Array.from_buffers(self.arrow_type, len(values), [bitmap, offsets], children=[items])

    def to_values(self, array: pa.Array) -> Values:
        offsets, inner = np.asarray(array.offsets), _items(array)
        items = _with_none(self.of.to_values(inner), np.asarray(inner.is_valid()))
        offsets = offsets - offsets[0]
        return [
            list(items[a:b]) if valid else None
            for a, b, valid in zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
        ]

    def invalid_reason(self, array: pa.Array) -> str | None:
        return self.of.invalid_reason(drop_nulls(array).flatten())

    def corrupt_reason(self, array: pa.Array) -> str | None:
        return self.of.corrupt_reason(_items(array))

    def to_json(self) -> dict[str, Any]:
        return {"of": kind_to_json(self.of)}

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(kind_from_json(parameters["of"]))

    def __str__(self) -> str:
        return f"list({self.of})"


@dataclass(frozen=True)
class Struct(Kind):
    """Named values of different kinds."""

    fields: tuple[tuple[str, Kind], ...]

    name: ClassVar[str] = "struct"

    def __init__(self, fields: Mapping[str, Kind] | Sequence[tuple[str, Kind]]) -> None:
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        object.__setattr__(self, "fields", tuple((str(name), kind) for name, kind in pairs))
        if not self.fields or len({name for name, _ in self.fields}) != len(self.fields):
            raise InvalidInputError("a struct needs fields, and their names must differ")
        for _, kind in self.fields:
            _check_inner(kind)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct([(name, kind.arrow_type) for name, kind in self.fields])

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        names = {name for name, _ in self.fields}
        for index, value in enumerate(values):
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise BadValueError(index, f"expected a dictionary, got {type(value).__name__}")
            if extra := set(value) - names:
                raise BadValueError(
                    index, f"unknown field {sorted(map(str, extra))[0]!r}; the struct has {sorted(names)}"
                )
        children = []
        for name, kind in self.fields:
            try:
                members = [None if value is None else value.get(name) for value in values]
                children.append(nat_as_null(kind, kind.to_array(members)))
            except BadValueError as bad:
                raise BadValueError(bad.index, f"field {name!r}: {bad.reason}") from None
        return pa.Array.from_buffers(
            self.arrow_type, len(values), [validity_bitmap(null_mask(values))], children=children
        )

    def to_values(self, array: pa.Array) -> Values:
        columns = {}
        for (name, kind), child in zip(self.fields, array.flatten(), strict=True):  # a null struct has null members
            columns[name] = _with_none(kind.to_values(child), np.asarray(child.is_valid()))
        names = list(columns)
        rows = zip(*columns.values(), strict=True)
        return [
            dict(zip(names, row, strict=True)) if valid else None
            for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
        ]

    def invalid_reason(self, array: pa.Array) -> str | None:
        present = drop_nulls(array)
        reasons = (kind.invalid_reason(present.field(name)) for name, kind in self.fields)
        return next(filter(None, reasons), None)

    def corrupt_reason(self, array: pa.Array) -> str | None:
        reasons = (kind.corrupt_reason(child) for (_, kind), child in zip(self.fields, array.flatten(), strict=True))
        return next(filter(None, reasons), None)

    def to_json(self) -> dict[str, Any]:
        return {"fields": [[name, kind_to_json(kind)] for name, kind in self.fields]}

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls([(name, kind_from_json(kind)) for name, kind in parameters["fields"]])

    def __str__(self) -> str:
        return f"struct({', '.join(f'{name}: {kind}' for name, kind in self.fields)})"


def _items(array: pa.Array) -> pa.Array:
    """The items of all lists of an array."""
    offsets = np.asarray(array.offsets)
    return array.values.slice(offsets[0], offsets[-1] - offsets[0])


def _check_inner(kind: Kind) -> None:
    if not isinstance(kind, Kind):
        raise InvalidInputError(f"a list or struct holds kinds, such as penstock.Text(), not {kind!r}")
    if kind.name == "linked":
        raise InvalidInputError("a linked kind must be a whole column; it cannot be inside a list or a struct")


def _with_none(values: Values, valid: npt.NDArray[np.bool_]) -> Sequence[Any]:
    if valid.all():
        return values if isinstance(values, list) else list(values)
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]
