"""Other people's data becomes rows: one file for each kind of source, and the run that takes a source in."""

from penstock.ingest._ledger import Done, read_list
from penstock.ingest._parts import Job, Part, Runner, Threads, do_part
from penstock.ingest._prepare import Prepared, prepare
from penstock.ingest._run import Outcome, Progress, run
from penstock.ingest._settings import OnBad, Settings, find_transform
from penstock.ingest._shape import Weighed
from penstock.ingest._source import Found, Listing, Reading, Reject, Row, Rows, Source
from penstock.ingest.sources import SOURCES

__all__ = [
    "SOURCES",
    "Done",
    "Found",
    "Job",
    "Listing",
    "OnBad",
    "Outcome",
    "Part",
    "Prepared",
    "Progress",
    "Reading",
    "Reject",
    "Row",
    "Rows",
    "Runner",
    "Settings",
    "Source",
    "Threads",
    "Weighed",
    "do_part",
    "find_transform",
    "prepare",
    "read_list",
    "run",
]
