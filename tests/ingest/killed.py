"""A program that takes a folder in, slowly enough to be killed: `python -m tests.ingest.killed SOURCE TABLE`."""

import sys
import time
from typing import Any

import penstock
from penstock.ingest import Settings, Threads, prepare, run
from penstock.ingest import _parts as parts_of
from penstock.storage import open_store
from tests.ingest.lines import SOURCES


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return row


def main(source: str, place: str) -> None:
    parts_of._LEAST_PART_BYTES = 1000
    ds = penstock.load(place)
    settings = Settings(transform="tests.ingest.killed:slow")
    prepared = prepare(ds._session, open_store(source), SOURCES, None, settings)
    run(ds._session, prepared, on_bad="skip", max_bad=0, message="", workers=2, runner=Threads(2))


if __name__ == "__main__":
    main(*sys.argv[1:])
