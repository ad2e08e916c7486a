"""Run an ingest: split the new files into parts, write them, commit once.

The contract; if the code disagrees with this list, the code is wrong:

- A run is one commit, or none if nothing is new. The source is only read.
- A finished part is staged by one put of one object; its rows become visible with the commit. So a run that is killed
  at any point loses at most the parts in flight, and no part is added twice.
- Rows are in the order of the source's files, independent of workers and timing. With shuffle, the seed decides the
  order of the files, and the order of rows also depends on how the files were split into parts.
- Of two concurrent runs of one source, both may write parts, one commits, and the other raises `ConflictError`.
- Memory is bounded by the number of parts in flight, not by their size.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event

from penstock.engine import BadSamples
from penstock.errors import StorageError
from penstock.history import store_time
from penstock.ingest._file_counts import FileCounts
from penstock.ingest._parts import Job, Rejects, Runner, ThreadRunner, check_rejects, split_parts
from penstock.ingest._prepare import PreparedIngest
from penstock.ingest._reader import ByteCounter, SourceReader
from penstock.ingest._source import Reject
from penstock.ingest._staging import FileId, FinishedPart, Plan, StagedParts, file_id, write_manifest
from penstock.table import Session, append_parts

_MAX_REQUESTS = 512


@dataclass
class IngestProgress:
    """How far an ingest is."""

    files: int
    """New files in the source."""
    bytes: int
    """Bytes of the new files."""
    _byte_counter: ByteCounter = field(repr=False)
    files_done: int = 0
    bytes_done: int = 0
    """Bytes of finished files."""
    rows: int = 0
    rejects: int = 0
    skipped_bytes: int = 0
    """Bytes of files that an earlier run finished."""

    @property
    def bytes_read(self) -> int:
        """Bytes of finished files and of those in flight; linked files are not read."""
        return max(self.bytes_done, min(self.bytes, self.skipped_bytes + self._byte_counter.bytes))

    def _add(self, part: FinishedPart) -> None:
        """Count a finished part."""
        self.files_done += len(part.files)
        self.bytes_done += part.source_bytes
        self.rows += part.rows
        self.rejects += len(part.rejects)


@dataclass(frozen=True)
class IngestOutcome:
    """What a run did."""

    rows: int
    resumed_rows: int
    """Rows that an earlier run had stored."""
    damaged_parts: int
    """Parts of an earlier run that were damaged, and were ingested again."""
    bytes_written: int
    files: FileCounts
    rejects: tuple[Reject, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    """What the rows changed about the columns, a sentence each."""


def run(
    session: Session,
    prepared: PreparedIngest,
    *,
    bad_samples: BadSamples,
    message: str,
    num_workers: int,
    runner: Runner | None = None,
    progress: Callable[[IngestProgress], None] = lambda _: None,
) -> IngestOutcome:
    """Write the new rows and commit.

    Raises `SampleError` for bad rows that `bad_samples` does not allow, and `ConflictError` if a concurrent commit
    ingested the same source.
    """
    plan, stop = prepared.plan, Event()
    rejects = Rejects(bad_samples)
    for reject in prepared.rejects:
        rejects.add(*reject)
    staged = StagedParts.of(session.store, session.branch, plan.source, plan.kind, plan.options)
    staged.write_plan(plan)
    session.intent.renew()
    found, damaged = staged.read_parts(plan, store_time(session.store))
    resumed = [part for part in found if bad_samples.tolerant or not part.rejects]
    current = {file_id(file) for file in prepared.new} if resumed else set()
    resumed = [part for part in resumed if current.issuperset(part.files)]
    parts = split_parts(prepared.new, num_workers, {file for part in resumed for file in part.files})
    # Without row transforms, storing rows takes about as long as reading them.
    readers = num_workers if plan.options.transforms_rows else max(1, num_workers // 2)
    job = Job(_concurrent(prepared.reader, readers), prepared.scan, plan, session.store, staged, bad_samples)
    state = IngestProgress(len(prepared.new), sum(file.size for file in prepared.new), job.reader.byte_counter)
    state.skipped_bytes = sum(part.source_bytes for part in resumed)
    finished: list[FinishedPart] = []
    state.rejects = len(rejects.found)
    progress(state)
    try:
        for part in chain(resumed, (runner or ThreadRunner(readers))(job, parts, stop=stop)):
            session.intent.renew()
            finished.append(part)
            rejects.found += part.rejects
            state._add(part)
            progress(state)
            check_rejects(rejects.found, bad_samples, rows=state.rows + state.rejects)
    finally:
        stop.set()
    check_rejects(rejects.found, bad_samples, rows=state.rows + state.rejects, finished=True)
    staged.check(plan, resumed)
    rows = _commit(session, prepared, finished, rejects.found, message)
    with suppress(StorageError):  # the rows are committed; a later run reads past what is left
        staged.clear()
    written = sum(fragment.bytes for part in finished for fragment in part.fragments)
    return IngestOutcome(
        rows,
        sum(part.rows for part in resumed),
        damaged,
        written,
        prepared.count_files(rejects.found),
        tuple(rejects.found),
        _notes(plan, finished),
    )


def _commit(
    session: Session,
    prepared: PreparedIngest,
    finished: Sequence[FinishedPart],
    rejects: Sequence[Reject],
    message: str,
) -> int:
    """Append the parts in the order of their files, record the ingested files and commit; without rows do nothing."""
    positions = {file_id(file): index for index, file in enumerate(prepared.new)}
    ordered = sorted(finished, key=lambda part: positions[part.files[0]])
    fragments = [fragment for part in ordered for fragment in part.fragments]
    if not fragments:
        return 0
    rejected = {reject.name for reject in rejects}
    files: list[FileId] = [file for part in ordered for file in part.files if file[0] not in rejected]
    plan = prepared.plan
    schema = plan.schema.with_any_shape(_other_shapes(ordered))
    rows = append_parts(session, schema, fragments, plan.containers, "ingest")
    session.add_sources({plan.source: (write_manifest(session.store, plan, files),)})
    session.commit(message or f"ingest {plan.source} ({plan.kind})")
    return rows


def _other_shapes(parts: Sequence[FinishedPart]) -> set[int]:
    return {id for part in parts for id in part.other_shapes}


def _notes(plan: Plan, finished: Sequence[FinishedPart]) -> tuple[str, ...]:
    other_shapes = _other_shapes(finished)
    return tuple(
        f"column {known.name!r}: an image of another shape was added to {known.kind}, so loaders give lists from this"
        " version on"
        for known in plan.schema
        if known.id in other_shapes
    )


def _concurrent(reader: SourceReader, readers: int) -> SourceReader:
    """A reader whose share of the concurrent requests suits the store."""
    max_concurrency = 4 if reader.store.is_local == 1 else max(8, _MAX_REQUESTS // readers)
    return replace(reader, max_concurrency=max_concurrency, byte_counter=ByteCounter())
