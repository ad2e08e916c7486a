"""A program that ingests a folder slowly enough to be killed: `python -m tests.ingest.killed SOURCE TABLE`."""

import sys
import time
from typing import Any

import penstock
from penstock.engine import BadSamples
from penstock.ingest import IngestOptions, ThreadRunner, _parts, prepare, run
from penstock.storage import open_store
from tests.ingest.lines import SOURCES


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return row


def main(source: str, table: str) -> None:
    _parts._MIN_PART_BYTES = 1000
    ds = penstock.load(table)
    options = IngestOptions(transform="tests.ingest.killed:slow")
    prepared = prepare(ds._session, open_store(source), SOURCES, None, options)
    run(
        ds._session,
        prepared,
        bad_samples=BadSamples(action="skip", limit=0),
        message="",
        num_workers=2,
        runner=ThreadRunner(2),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
