"""What every kind of index defines: its options, its tables, and the entries of some rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from penstock.format import Field
from penstock.table import Int64Array, Reader

_RUN_PAGE_BYTES = 1 << 20
KEY = "key"
"""The first column of every table of an index, by which it is sorted."""


@dataclass(frozen=True)
class TableLayout:
    """How the entries of a table are stored."""

    schema: pa.Schema
    """Of its pages; the first column is `KEY`."""
    page_bytes: int = 128 << 10
    """Bytes of a page before compression; a page has at least one entry."""
    split_at_keys: bool = False
    """Whether a page has entries of one key only."""
    compression: str | None = "zstd"
    run_schema: pa.Schema | None = None
    """Of the entries of a run, before they are packed; None if it is the same."""

    def for_runs(self) -> "TableLayout":
        """The layout of a run: few large pages, wherever they end."""
        return TableLayout(self.run_schema or self.schema, page_bytes=_RUN_PAGE_BYTES)


@dataclass(frozen=True)
class Run:
    """The entries of some rows."""

    tables: Mapping[str, pa.Table]
    """By name, each sorted by key; equal keys in the order of rows."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over the rows, which the index adds up by segment."""


class IndexKind(Protocol):
    """A kind of index with its options."""

    name: ClassVar[str]
    run_bytes: ClassVar[int]
    """Bytes of values from which one run is made; its memory is some multiple of that."""
    rows_table: ClassVar[str | None]
    """The table that has each row once; None if every entry of every table is of one row."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options as JSON, from which the kind is made again."""

    @property
    def tables(self) -> Mapping[str, TableLayout]:
        """Its tables by name."""

    def objects(self, reader: Reader, field: Field, positions: Int64Array) -> Mapping[str, pa.Table]:
        """Tables that are made before the entries and that every search needs, such as centroids."""

    def run(self, row_ids: Int64Array, values: pa.Array, objects: Mapping[str, pa.Table]) -> Run:
        """The entries of some rows; `values` are those of `Reader.arrow`, nulls included."""

    def pack(self, table: str, entries: pa.Table) -> pa.Table:
        """Consecutive entries, sorted by key, as they are stored in pages; where they are cut is arbitrary."""

    def entry_rows(self, table: str, entries: pa.RecordBatch) -> Int64Array:
        """The row ids of entries: of `rows_table`, or without one of any table."""
