"""Rows and columns: read, append, update, delete, add and drop columns, and verify."""

from penstock.table._blobs import BlobReader
from penstock.table._input import Appendable
from penstock.table._links import AllowedLinks, Containers
from penstock.table._pages import Rows
from penstock.table._read import ROW_ID, Filled, Reader, as_batch
from penstock.table._select import Where, positions, resolve
from penstock.table._session import Session, author
from penstock.table._verify import Report, Verifier

__all__ = [
    "ROW_ID",
    "AllowedLinks",
    "Appendable",
    "BlobReader",
    "Containers",
    "Filled",
    "Reader",
    "Report",
    "Rows",
    "Session",
    "Verifier",
    "Where",
    "as_batch",
    "author",
    "positions",
    "resolve",
]
