"""Take a source in: list, recognise, look, cut into parts, write them, commit once.

The contract; if the code disagrees with this list, the code is wrong:

- A run is one commit, or none where nothing is new. The source is only read.
- A part is written by whoever runs it and kept by one put of one object; until the commit nobody sees its rows. So a
  run that is killed at any point loses at most the parts that were under way, and none is added twice.
- Rows are in the order of the source's files, whoever ran which part and when. Shuffled, the files are in an order that
  the seed decides, and how rows are mixed depends on how the parts were cut.
- Two runs of one source at once: both may write, one commits, and the other is told so.
- Memory is bounded by the number of parts under way, not by their size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Event

from penstock.history import store_time
from penstock.ingest._bucket import Bucket, Meter
from penstock.ingest._ledger import Done, File, Waiting, identity, write_list
from penstock.ingest._parts import Job, Runner, Threads, cut_parts, too_many
from penstock.ingest._prepare import Prepared
from penstock.ingest._settings import OnBad
from penstock.ingest._source import Reject
from penstock.table import Session, append_parts

_REQUESTS = 512


@dataclass
class Progress:
    """How far an ingest is."""

    files: int
    bytes: int
    """Files that are new, and how large they are."""
    meter: Meter = field(repr=False)
    files_done: int = 0
    bytes_done: int = 0
    """Bytes of files that are done."""
    rows: int = 0
    rejects: int = 0
    skipped_bytes: int = 0
    """Bytes that an earlier run had done."""

    @property
    def bytes_read(self) -> int:
        """Bytes that have been dealt with, those of files half-way through among them; none of linked files."""
        return max(self.bytes_done, min(self.bytes, self.skipped_bytes + self.meter.bytes))


@dataclass(frozen=True)
class Outcome:
    """What an ingest did."""

    rows: int
    continued: int
    """Rows that an earlier run had stored already."""
    bytes_written: int
    rejects: tuple[Reject, ...] = field(repr=False)


def run(
    session: Session,
    prepared: Prepared,
    *,
    on_bad: OnBad,
    max_bad: int,
    message: str,
    workers: int,
    runner: Runner | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Do it, and commit."""
    plan, stop = prepared.plan, Event()
    waiting = Waiting.of(session.store, session.branch, plan.source, plan.kind, plan.settings)
    waiting.begin(plan)
    session.notice.at_work()
    kept = [done for done in waiting.parts(plan, store_time(session.store)) if on_bad == "skip" or not done.rejects]
    current = {identity(file) for file in prepared.new} if kept else set()
    kept = [done for done in kept if current.issuperset(done.files)]
    parts = cut_parts(prepared.new, workers, {file for done in kept for file in done.files})
    reading = workers if plan.settings.works_on_rows else max(1, workers // 2)  # storing them is the other half
    job = Job(_quickly(prepared.bucket, reading), prepared.reading, plan, session.store, waiting, on_bad, max_bad)
    state = Progress(len(prepared.new), sum(file.size for file in prepared.new), job.bucket.meter)
    state.skipped_bytes = sum(done.source_bytes for done in kept)
    finished: list[Done] = []
    progress(state)
    try:
        for done in chain(kept, (runner or Threads(reading))(job, parts, stop=stop)):
            session.notice.at_work()
            finished.append(done)
            state.files_done += len(done.files)
            state.bytes_done += done.source_bytes
            state.rows += done.rows
            state.rejects += len(done.rejects)
            progress(state)
            if state.rejects > max_bad:
                raise too_many([reject for done in finished for reject in done.rejects], max_bad)
    finally:
        stop.set()
    rejects = tuple(reject for done in finished for reject in done.rejects)
    waiting.check(plan, kept)
    rows = _commit(session, prepared, finished, rejects, message)
    waiting.clear()
    written = sum(fragment.bytes for done in finished for fragment in done.fragments)
    return Outcome(rows, sum(done.rows for done in kept), written, rejects)


def _commit(
    session: Session, prepared: Prepared, finished: Sequence[Done], rejects: Sequence[Reject], message: str
) -> int:
    """Append the parts in the order of their files, and say what was taken in; without rows nothing happens."""
    places = {identity(file): number for number, file in enumerate(prepared.new)}
    ordered = sorted(finished, key=lambda done: places[done.files[0]])
    fragments = [fragment for done in ordered for fragment in done.fragments]
    if not fragments:
        return 0
    refused = {reject.name for reject in rejects}
    files: list[File] = [file for done in ordered for file in done.files if file[0] not in refused]
    plan = prepared.plan
    rows = append_parts(session, plan.schema, fragments, plan.containers, "ingest")
    session.take_sources({plan.source: (write_list(session.store, plan, files),)})
    session.commit(message or f"ingest {plan.source} ({plan.kind})")
    return rows


def _quickly(bucket: Bucket, reading: int) -> Bucket:
    """As many requests at once as the store likes, shared by those who read."""
    readers = 4 if bucket.store.fan_out == 1 else max(8, _REQUESTS // reading)
    return Bucket(bucket.store, bucket.link, readers)
