"""The front door: make a table, load one, read it, change it, and move in its history."""

from penstock.dataset._dataset import Dataset, Summary
from penstock.dataset._diff import TableDiff
from penstock.dataset._ingest import Ingested, ingest, sync
from penstock.dataset._names import Names
from penstock.dataset._open import create, delete, exists, load, verify
from penstock.dataset._view import ColumnView, View

__all__ = [
    "ColumnView",
    "Dataset",
    "Ingested",
    "Names",
    "Summary",
    "TableDiff",
    "View",
    "create",
    "delete",
    "exists",
    "ingest",
    "load",
    "sync",
    "verify",
]
