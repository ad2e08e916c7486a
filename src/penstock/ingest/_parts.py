"""Parts of an ingest: cut, and done by whoever runs them, in threads here or anywhere else."""

import hashlib
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, Semaphore
from typing import Any, Protocol

import numpy as np

from penstock.errors import SampleError
from penstock.format import as_column
from penstock.format.kinds import Image
from penstock.ingest._bucket import Bucket
from penstock.ingest._ledger import Done, File, Plan, Waiting, identity
from penstock.ingest._settings import OnBad
from penstock.ingest._shape import Shaper, chunks
from penstock.ingest._source import Found, Reading, Reject
from penstock.storage import ObjectInfo, Store
from penstock.table import write_part

_PART_BYTES = 256 << 20
_LEAST_PART_BYTES = 16 << 20
_PART_FILES = 16_384
_PARTS_PER_WORKER = 4
_SHOWN = 3
_ANY_TIME = nullcontext()


@dataclass(frozen=True)
class Part:
    """Files that are read and written by one worker."""

    files: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Job:
    """All that a worker, here or on another machine, must know to do a part; it can be pickled."""

    bucket: Bucket
    reading: Reading
    plan: Plan
    target: Store
    waiting: Waiting
    on_bad: OnBad
    max_bad: int


class Runner(Protocol):
    """Does the parts of a job, wherever it likes, with `do_part`; yields each when it is done, in any order."""

    def __call__(self, job: Job, parts: Sequence[Part], *, stop: Event) -> Iterator[Done]: ...


@dataclass(frozen=True)
class Threads:
    """The runner that needs nothing else: threads of this process."""

    reading: int
    """How many read rows; one more waits for its last files to be stored."""

    def __call__(self, job: Job, parts: Sequence[Part], *, stop: Event) -> Iterator[Done]:
        """A few parts at a time; after a failure no other starts, and those under way are stopped."""
        threads = self.reading + 1
        with ThreadPoolExecutor(threads, "penstock-part") as pool:
            do = partial(do_part, job, stop=stop, turn=Semaphore(self.reading))
            running: set[Future[Done]] = {pool.submit(do, part) for part in parts[:threads]}
            rest = iter(parts[threads:])
            try:
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        if (part := next(rest, None)) is not None:
                            running.add(pool.submit(do, part))
                        yield result
            finally:
                stop.set()


def do_part(job: Job, part: Part, stop: Event, turn: AbstractContextManager[Any] = _ANY_TIME) -> Done:
    """Read a part's rows, store them, and keep what became of it; for any thread or process.

    Rows are read while it is its `turn`.
    """
    rejects: list[Reject] = []
    lock = Lock()

    def refuse(name: str, reason: str) -> None:
        if job.on_bad == "raise":
            raise SampleError(
                f"{name}: {reason}; nothing was committed. Mend it, or leave such rows out with on_bad='skip'"
            )
        with lock:
            rejects.append(Reject(name, reason))
            if len(rejects) > job.max_bad:
                raise too_many(rejects, job.max_bad)

    def running(found: Iterable[Found]) -> Generator[Found, None, None]:
        with turn:
            for item in found:
                if stop.is_set():
                    raise InterruptedError("the ingest was stopped")
                yield item

    plan = job.plan
    known = {name: as_column(name, column).kind for name, column in job.reading.columns.items()}
    shaper = Shaper(plan.settings, {name: known.get(name, Image()) for name in plan.pictures}, known)
    seed = plan.settings.shuffle
    mixed = None if seed is None else np.random.default_rng([seed, int.from_bytes(_digest(part)[:8], "big")])
    with closing(running(job.reading.rows(job.bucket, part.files))) as found:  # or a failure would keep its turn
        rows = chunks(shaper.rows(found), refuse, mixed)
        fragments = write_part(job.target, plan.schema, rows, containers=plan.containers, refuse=refuse)
    done = Done(tuple(map(identity, part.files)), tuple(fragments), tuple(rejects), part.bytes)
    job.waiting.keep(plan, done)
    return done


def too_many(rejects: Sequence[Reject], limit: int) -> SampleError:
    """Why an ingest that rots is stopped."""
    some = "; ".join(f"{reject.name}: {reject.reason}" for reject in rejects[:_SHOWN])
    return SampleError(
        f"more than {limit} rows or files could not be taken in, so the ingest stopped and nothing was committed"
        f" ({some}; …). What was stored is kept: raise max_bad and run it again, or mend the source"
    )


def cut_parts(files: Sequence[ObjectInfo], workers: int, done: Collection[File] = ()) -> list[Part]:
    """Files that follow each other: parts large enough to be good fragments, and enough of them for all workers.

    No part reaches over files that are done, so that the parts have an order.
    """
    total = sum(file.size for file in files)
    target = min(_PART_BYTES, max(_LEAST_PART_BYTES, total // (_PARTS_PER_WORKER * workers)))
    parts: list[Part] = []
    waiting: list[ObjectInfo] = []
    size = 0
    for file in files:
        is_done = bool(done) and identity(file) in done
        if waiting and (is_done or size + file.size > target or len(waiting) >= _PART_FILES):
            parts.append(Part(tuple(waiting)))
            waiting, size = [], 0
        if not is_done:
            waiting.append(file)
            size += file.size
    return [*parts, Part(tuple(waiting))] if waiting else parts


def _digest(part: Part) -> bytes:
    return hashlib.sha256(repr([identity(file) for file in part.files]).encode()).digest()
