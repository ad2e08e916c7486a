"""The front door: create, load, read, change, stream, version and maintain tables."""

from penstock.dataset._dataset import Dataset, Summary
from penstock.dataset._diff import TableDiff
from penstock.dataset._epoch_view import EpochView
from penstock.dataset._ingest import IngestResult, SourceLocation, ingest, open_source, sync
from penstock.dataset._locations import ManagedTable, managed_table, open_entry, open_location
from penstock.dataset._maintenance import compact, vacuum
from penstock.dataset._mixture import Mixture, mix
from penstock.dataset._open import create, delete, exists, load, verify
from penstock.dataset._preview import BlobPreview, preview_rows
from penstock.dataset._purge import purge
from penstock.dataset._reading import ColumnView
from penstock.dataset._refs import Branches, RefMapping, Tags
from penstock.dataset._samples import SampleView
from penstock.dataset._saved_views import SavedView, SavedViews
from penstock.dataset._sql import query_tables, sql
from penstock.dataset._view import View

__all__ = [
    "BlobPreview",
    "Branches",
    "ColumnView",
    "Dataset",
    "EpochView",
    "IngestResult",
    "ManagedTable",
    "Mixture",
    "RefMapping",
    "SampleView",
    "SavedView",
    "SavedViews",
    "SourceLocation",
    "Summary",
    "TableDiff",
    "Tags",
    "View",
    "compact",
    "create",
    "delete",
    "exists",
    "ingest",
    "load",
    "managed_table",
    "mix",
    "open_entry",
    "open_location",
    "open_source",
    "preview_rows",
    "purge",
    "query_tables",
    "sql",
    "sync",
    "vacuum",
    "verify",
]
