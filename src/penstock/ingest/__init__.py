"""Ingest external data as rows: one file for each kind of source, and the run that writes and commits them."""

from penstock.ingest._file_counts import FileCounts
from penstock.ingest._options import IngestKeywords, IngestOptions, Transform, find_transform, transform_name
from penstock.ingest._parts import Job, Part, Runner, ThreadRunner, run_part
from penstock.ingest._prepare import PreparedIngest, prepare, source_uri
from penstock.ingest._run import IngestOutcome, IngestProgress, run
from penstock.ingest._source import Reject, Row, RowBatch, Source, SourceItem, SourceListing, SourceScan
from penstock.ingest._staging import FinishedPart, read_manifest
from penstock.ingest._transform import ImageCost
from penstock.ingest.sources import SOURCES

__all__ = [
    "SOURCES",
    "FileCounts",
    "FinishedPart",
    "ImageCost",
    "IngestKeywords",
    "IngestOptions",
    "IngestOutcome",
    "IngestProgress",
    "Job",
    "Part",
    "PreparedIngest",
    "Reject",
    "Row",
    "RowBatch",
    "Runner",
    "Source",
    "SourceItem",
    "SourceListing",
    "SourceScan",
    "ThreadRunner",
    "Transform",
    "find_transform",
    "prepare",
    "read_manifest",
    "run",
    "run_part",
    "source_uri",
    "transform_name",
]
