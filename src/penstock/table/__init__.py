"""Rows and columns: read, append, update, delete, add and drop columns, and verify."""

from penstock.table._blobs import BlobReader, RangeFile
from penstock.table._columns import add_column, drop_column, rename_column
from penstock.table._compact import compact
from penstock.table._diff import Diff, diff
from penstock.table._input import Appendable
from penstock.table._links import AllowedLinks, Containers, split_uri
from penstock.table._merge import Conflict, OnConflict, merge
from penstock.table._pages import (
    Cells,
    Empty,
    PageRequest,
    Pages,
    Rows,
    Wanted,
    all_numbers,
    copy_numbers,
    gather,
    page_requests,
    read_pages,
    take,
)
from penstock.table._parts import Chunk, append_parts, write_part
from penstock.table._picked import PickedRows
from penstock.table._read import ROW_ID, Filled, Reader, as_batch
from penstock.table._rows import append_rows, delete_rows, update_rows
from penstock.table._select import Where, positions, resolve, rows_at
from penstock.table._session import Session, author
from penstock.table._straight import read_apart, read_straight, row_range
from penstock.table._verify import Report, Verifier

__all__ = [
    "ROW_ID",
    "AllowedLinks",
    "Appendable",
    "BlobReader",
    "Cells",
    "Chunk",
    "Conflict",
    "Containers",
    "Diff",
    "Empty",
    "Filled",
    "OnConflict",
    "PageRequest",
    "Pages",
    "PickedRows",
    "RangeFile",
    "Reader",
    "Report",
    "Rows",
    "Session",
    "Verifier",
    "Wanted",
    "Where",
    "add_column",
    "all_numbers",
    "append_parts",
    "append_rows",
    "as_batch",
    "author",
    "compact",
    "copy_numbers",
    "delete_rows",
    "diff",
    "drop_column",
    "gather",
    "merge",
    "page_requests",
    "positions",
    "read_apart",
    "read_pages",
    "read_straight",
    "rename_column",
    "resolve",
    "row_range",
    "rows_at",
    "split_uri",
    "take",
    "update_rows",
    "write_part",
]
