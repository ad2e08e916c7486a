"""Scalar indexes: the values of a column in order, for filters that statistics cannot prune."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Label, Tensor, Text
from penstock.query.indexes._kind import KEY, Run, TableLayout
from penstock.table import Int64Array, Reader, native_type

_NOT_A_TIME = np.iinfo(np.int64).min
_PAGE_BYTES = 32 << 10
"""Small: a filter on a few values reads little beside them."""


@dataclass(frozen=True)
class ScalarKind:
    """An index of numbers, labels, bools, times or text."""

    column: str
    type: pa.DataType
    """As filters see it."""

    name: ClassVar[str] = "scalar"
    run_bytes: ClassVar[int] = 64 << 20
    rows_table: ClassVar[str | None] = None

    @classmethod
    def make(cls, field: Field, options: Mapping[str, Any]) -> "ScalarKind":
        """Raises `InvalidInputError` for a column without an order, or an option."""
        if options:
            raise InvalidInputError(f"a scalar index has no option {min(options)!r}")
        kind = field.kind
        ordered = isinstance(kind, Text | Label) or (
            isinstance(kind, Tensor) and kind.shape == () and kind.element.logical.kind in "iufbMm"
        )
        if not ordered:
            raise InvalidInputError(
                f"column {field.name!r} holds {kind}; a scalar index is for numbers, labels, bools, times and text"
            )
        return cls(field.name, native_type(field))

    @property
    def options(self) -> Mapping[str, Any]:
        return {}

    @property
    def _key_type(self) -> pa.DataType:
        """Times are stored as their numbers, text and numbers as they are."""
        if pa.types.is_temporal(self.type):
            return pa.int64()
        return pa.float32() if pa.types.is_float16(self.type) else self.type

    @property
    def tables(self) -> Mapping[str, TableLayout]:
        return {
            "values": TableLayout(pa.schema([(KEY, self._key_type), ("row_id", pa.int64())]), page_bytes=_PAGE_BYTES),
            "missing": TableLayout(pa.schema([(KEY, pa.int64()), ("nan", pa.bool_())])),
        }

    def objects(self, reader: Reader, field: Field, positions: Int64Array) -> Mapping[str, pa.Table]:  # noqa: ARG002
        return {}

    def run(self, row_ids: Int64Array, values: pa.Array, objects: Mapping[str, pa.Table]) -> Run:  # noqa: ARG002
        keys = values.view(pa.int64()) if pa.types.is_temporal(values.type) else values.cast(self._key_type)
        null = np.asarray(keys.is_null())
        nan = np.zeros(len(keys), bool)
        if pa.types.is_floating(keys.type):
            nan = np.asarray(pc.fill_null(pc.is_nan(keys), False))
        present = pa.table({KEY: keys, "row_id": row_ids}).filter(pa.array(~(null | nan)))
        order = pc.sort_indices(present, [(KEY, "ascending"), ("row_id", "ascending")])
        missing = pa.table({KEY: row_ids, "nan": nan}).filter(pa.array(null | nan))
        return Run({"values": present.take(order), "missing": missing.sort_by(KEY)})

    def pack(self, table: str, entries: pa.Table) -> pa.Table:  # noqa: ARG002
        return entries

    def entry_rows(self, table: str, entries: pa.RecordBatch) -> Int64Array:
        return np.asarray(entries.column(KEY if table == "missing" else "row_id"), np.int64)

    def as_column(self, keys: pa.Array) -> pa.Array:
        """Keys as values of the column; an earlier writer has "not a time" among them, which is null."""
        if not pa.types.is_temporal(self.type):
            return keys.cast(self.type)
        return pc.if_else(pc.equal(keys, _NOT_A_TIME), pa.scalar(None, pa.int64()), keys).view(self.type)
