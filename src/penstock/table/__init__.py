"""Rows and columns: read, append, update, delete, add and drop columns, and verify."""

from penstock.table._blobs import BlobReader, RangeFile
from penstock.table._columns import add_column, drop_column, rename_column
from penstock.table._compact import as_ranges, compact, compaction_advice
from penstock.table._compute_column import ComputeOptions
from penstock.table._computed import storable, with_computed
from penstock.table._diff import Diff, diff
from penstock.table._direct_read import RowPages, direct_row_range, read_direct, reads_by_row
from penstock.table._encode import from_arrow
from penstock.table._gather import (
    FixedColumn,
    RawColumn,
    copy_dense,
    dense_runs,
    fixed_column,
    gather,
    gather_dense,
    take,
)
from penstock.table._input import Appendable
from penstock.table._lease import VersionLease, lease_version, lease_warning
from penstock.table._leaves import Leaves, SortedRows, rows_between
from penstock.table._links import AllowedLinks, LinkContainers, split_uri
from penstock.table._memory_table import is_memory_table, memory_table
from penstock.table._page_cache import PageCache
from penstock.table._pages import (
    FragmentRows,
    Int64Array,
    PageRequest,
    PageRuns,
    Pages,
    fetch_pages,
    page_requests,
    read_pages,
)
from penstock.table._parts import RowChunk, append_parts, write_part
from penstock.table._prune import CandidateRows, PruneCounts, candidate_rows
from penstock.table._quarantine import (
    quarantine_rows,
    quarantined_rows,
    release_rows,
    without_quarantined,
)
from penstock.table._random_read import RandomRowReader
from penstock.table._read import ROW_ID, ColumnValues, Reader, as_batch, native_type
from penstock.table._row_index import row_values
from penstock.table._row_sizes import RowSizes, linked_bytes
from penstock.table._rows import append_rows, delete_rows, update_rows
from penstock.table._select import find_positions, find_row_ids, is_position, resolve_positions, sorted_distinct
from penstock.table._session import Session, author
from penstock.table._shared_columns import NULL_BOUNDS, ArenaValues, EncodedRows, RawColumns
from penstock.table._verify import Verifier, VerifyReport
from penstock.table.merging import Conflict, OnConflict, merge

__all__ = [
    "NULL_BOUNDS",
    "ROW_ID",
    "AllowedLinks",
    "Appendable",
    "ArenaValues",
    "BlobReader",
    "CandidateRows",
    "ColumnValues",
    "ComputeOptions",
    "Conflict",
    "Diff",
    "EncodedRows",
    "FixedColumn",
    "FragmentRows",
    "Int64Array",
    "Leaves",
    "LinkContainers",
    "OnConflict",
    "PageCache",
    "PageRequest",
    "PageRuns",
    "Pages",
    "PruneCounts",
    "RandomRowReader",
    "RangeFile",
    "RawColumn",
    "RawColumns",
    "Reader",
    "RowChunk",
    "RowPages",
    "RowSizes",
    "Session",
    "SortedRows",
    "Verifier",
    "VerifyReport",
    "VersionLease",
    "add_column",
    "append_parts",
    "append_rows",
    "as_batch",
    "as_ranges",
    "author",
    "candidate_rows",
    "compact",
    "compaction_advice",
    "copy_dense",
    "delete_rows",
    "dense_runs",
    "diff",
    "direct_row_range",
    "drop_column",
    "fetch_pages",
    "find_positions",
    "find_row_ids",
    "fixed_column",
    "from_arrow",
    "gather",
    "gather_dense",
    "is_memory_table",
    "is_position",
    "lease_version",
    "lease_warning",
    "linked_bytes",
    "memory_table",
    "merge",
    "native_type",
    "page_requests",
    "quarantine_rows",
    "quarantined_rows",
    "read_direct",
    "read_pages",
    "reads_by_row",
    "release_rows",
    "rename_column",
    "resolve_positions",
    "row_values",
    "rows_between",
    "sorted_distinct",
    "split_uri",
    "storable",
    "take",
    "update_rows",
    "with_computed",
    "without_quarantined",
    "write_part",
]
