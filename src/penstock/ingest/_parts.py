"""Parts of an ingest: how files are split into parts, and how a worker runs one."""

import hashlib
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from threading import Event, Lock, Semaphore
from typing import Any, Protocol

import numpy as np

from penstock.engine import BadSamples
from penstock.errors import SampleError, SourceChangedError
from penstock.format import Fragment, as_column
from penstock.format.kinds import Image
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, RejectedFileError, SourceItem, SourceScan
from penstock.ingest._staging import FileId, FinishedPart, Plan, StagedParts, file_id
from penstock.ingest._transform import RowTransformer, chunk_rows
from penstock.storage import ObjectInfo, Store
from penstock.table import write_part

_MAX_PART_BYTES = 256 << 20
_MIN_PART_BYTES = 16 << 20
_MAX_PART_FILES = 16_384
_PARTS_PER_WORKER = 4
_MAX_LISTED = 3
_CHANGED = "changed while it was read, so none of its rows were stored; run the ingest again once it is written"
_DEFAULT_LIMIT = 1000
_SHARE_GRACE = 100
"""Bad rows allowed before a share is enforced: the share of the first few rows says little."""


@dataclass(frozen=True)
class Part:
    """Consecutive files that one worker reads and writes."""

    files: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Job:
    """What a worker, in this process or on another machine, needs to run a part; can be pickled."""

    reader: SourceReader
    scan: SourceScan
    plan: Plan
    store: Store
    staged: StagedParts
    bad_samples: BadSamples


class Runner(Protocol):
    """Runs the parts of a job with `run_part`, on any threads or machines; yields finished parts in any order."""

    def __call__(self, job: Job, parts: Sequence[Part], *, stop: Event) -> Iterator[FinishedPart]: ...


@dataclass(frozen=True)
class ThreadRunner:
    """The default runner: threads of this process."""

    readers: int
    """Threads that read rows at a time; one more thread finishes storing its last files."""

    def __call__(self, job: Job, parts: Sequence[Part], *, stop: Event) -> Iterator[FinishedPart]:
        """Run a few parts at a time; after a failure, stop those in flight and start no others."""
        threads = self.readers + 1
        with ThreadPoolExecutor(threads, "penstock-part") as pool:
            run = partial(run_part, job, stop=stop, read_slot=Semaphore(self.readers))
            in_flight: set[Future[FinishedPart]] = {pool.submit(run, part) for part in parts[:threads]}
            pending = iter(parts[threads:])
            try:
                while in_flight:
                    done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        if (part := next(pending, None)) is not None:
                            in_flight.add(pool.submit(run, part))
                        yield result
            finally:
                stop.set()


def run_part(
    job: Job,
    part: Part,
    stop: Event,
    read_slot: AbstractContextManager[Any] = nullcontext(),  # noqa: B008
) -> FinishedPart:
    """Read the rows of a part, store them and stage the result; may run in any thread or process.

    Rows are read while `read_slot` is held. A file that changes while it is read, or that expands too much, is
    rejected as a whole, and the other files are read again. Raises `SampleError` for bad rows that `job.bad_samples`
    does not allow.
    """
    rejected: dict[str, Reject] = {}
    while True:
        rejects = Rejects(job.bad_samples)
        for found in rejected.values():
            rejects.add(*found)
        try:
            remaining = [file for file in part.files if file.key not in rejected]
            fragments, other_shapes = _write_rows(job, part, remaining, rejects, stop, read_slot)
        except SourceChangedError:
            new = job.reader.find_changed(remaining)
            if not new:
                raise
            rejected |= {file.key: Reject(file.key, _CHANGED) for file in new}
            continue
        except RejectedFileError as error:
            rejected[error.key] = Reject(error.key, error.reason)
            continue
        files = tuple(map(file_id, part.files))
        finished = FinishedPart(
            files, tuple(fragments), tuple(rejects.found), part.bytes, other_shapes=tuple(other_shapes)
        )
        job.staged.add(job.plan, finished)
        return finished


def _write_rows(
    job: Job,
    part: Part,
    files: Sequence[ObjectInfo],
    rejects: "Rejects",
    stop: Event,
    read_slot: AbstractContextManager[Any],
) -> tuple[list[Fragment], set[int]]:
    """Store the rows of some files of a part; see `write_part`."""

    def until_stopped(items: Iterable[SourceItem]) -> Generator[SourceItem, None, None]:
        with read_slot:
            for item in items:
                if stop.is_set():
                    raise InterruptedError("the ingest was stopped")
                yield item

    plan = job.plan
    known = {name: as_column(name, column).kind for name, column in job.scan.columns.items()}
    transformer = RowTransformer(plan.options, {name: known.get(name, Image()) for name in plan.images}, known)
    seed = plan.options.shuffle_seed
    shuffle = None if seed is None else np.random.default_rng([seed, int.from_bytes(_digest(part)[:8], "big")])
    with closing(until_stopped(job.scan.rows(job.reader, files))) as items:  # releases the slot on a failure
        chunks = chunk_rows(transformer.rows(items), rejects.add, shuffle)
        return write_part(job.store, plan.schema, chunks, containers=plan.containers, on_reject=rejects.add)


class Rejects:
    """Rejected rows and files; adding one raises `SampleError` if it is not allowed."""

    def __init__(self, bad_samples: BadSamples) -> None:
        self.found: list[Reject] = []
        self._bad_samples, self._lock = bad_samples, Lock()

    def add(self, name: str, reason: str) -> None:
        if not self._bad_samples.tolerant:
            raise SampleError(
                f"{name}: {reason}; nothing was committed. Repair it, or skip such rows with bad_samples='skip'"
            )
        with self._lock:
            self.found.append(Reject(name, reason))
            check_rejects(self.found, self._bad_samples)


def check_rejects(
    rejects: Sequence[Reject], bad_samples: BadSamples, *, rows: int | None = None, finished: bool = False
) -> None:
    """Raise `SampleError` if more rows or files were rejected than the limit allows.

    `rows` is the number of rows seen so far, rejects included; a share is checked only if it is known, and exactly only
    at the end (`finished`).
    """
    limit = _DEFAULT_LIMIT if bad_samples.limit is None else bad_samples.limit
    if isinstance(limit, Integral):
        allowed: float = int(limit)
    elif rows is None:
        return
    else:
        allowed = max(0 if finished else _SHARE_GRACE, limit * rows)
    if len(rejects) <= allowed:
        return
    quantity = f"{limit}" if isinstance(limit, Integral) else f"{limit:.3%}"
    examples = "; ".join(f"{reject.name}: {reject.reason}" for reject in rejects[:_MAX_LISTED])
    raise SampleError(
        f"more than {quantity} rows or files could not be read, so the ingest stopped and nothing was committed"
        f" ({examples}; …). Finished parts are kept: raise BadSamples(limit=…) and run it again, or repair the source"
    )


def split_parts(files: Sequence[ObjectInfo], num_workers: int, done: Collection[FileId] = ()) -> list[Part]:
    """Split files into parts: large enough for good fragments, and enough of them for all workers.

    No part spans a file that is done, so that parts have an order.
    """
    total = sum(file.size for file in files)
    target = min(_MAX_PART_BYTES, max(_MIN_PART_BYTES, total // (_PARTS_PER_WORKER * num_workers)))
    parts: list[Part] = []
    pending: list[ObjectInfo] = []
    size = 0
    for file in files:
        is_done = bool(done) and file_id(file) in done
        if pending and (is_done or size + file.size > target or len(pending) >= _MAX_PART_FILES):
            parts.append(Part(tuple(pending)))
            pending, size = [], 0
        if not is_done:
            pending.append(file)
            size += file.size
    return [*parts, Part(tuple(pending))] if pending else parts


def _digest(part: Part) -> bytes:
    return hashlib.sha256(repr([file_id(file) for file in part.files]).encode()).digest()
