"""One statement of the engine: its text, and the scans and functions that answer it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.query.scan import TableScan, as_dataset

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_RESULT_ROWS = 1 << 16
_ARROW: Any = "arrow"
_SPECIAL: Any = "special"

Apply: TypeAlias = Callable[[Sequence[pa.Array]], pa.Array]
"""A function of Arrow arrays."""


@dataclass(frozen=True)
class Statement:
    """What the engine runs."""

    text: str
    params: Mapping[str, Any]
    scans: Mapping[str, TableScan]
    """By the name in the text."""
    functions: Mapping[str, tuple[Apply, pa.DataType]]
    """By the name in the text: the function, and the type of its result."""

    def batches(self, connection: "DuckDBPyConnection") -> Iterator[pa.RecordBatch]:
        """The result; the first batch is empty and has its schema."""
        try:
            for name, scan in self.scans.items():
                connection.register(name, as_dataset(scan))
            for name, (apply, returns) in self.functions.items():
                _register(connection, name, apply, returns)
            params = dict(self.params)
            found = connection.sql(self.text, params=params) if params else connection.sql(self.text)
            reader = found.to_arrow_reader(_RESULT_ROWS)
            yield pa.RecordBatch.from_pylist([], reader.schema)
            yield from reader
        finally:
            for name in self.functions:  # they belong to the database
                try:
                    connection.remove_function(name)
                except Exception:
                    continue


def _register(connection: "DuckDBPyConnection", name: str, apply: Apply, returns: pa.DataType) -> None:
    def call(*arguments: pa.ChunkedArray) -> pa.Array:
        return apply([_array(each) for each in arguments])

    kind = connection.from_arrow(pa.schema([("x", returns)]).empty_table()).types[0]
    connection.create_function(name, call, None, kind, type=_ARROW, null_handling=_SPECIAL)


def _array(values: Any) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
