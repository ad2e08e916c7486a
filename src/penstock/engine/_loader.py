"""The user's handle: batches of an epoch, length, state to resume from, statistics."""

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from numbers import Integral
from threading import RLock
from typing import Any

from penstock.engine._engine import LoaderEngine
from penstock.engine._options import LoaderOptions
from penstock.engine._progress import Progress, ProgressDisplay
from penstock.engine._ranks import RankAgreement
from penstock.engine._run import EngineRun
from penstock.engine._stats import LoaderStats, StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.sources import MixtureSource, Source
from penstock.errors import InvalidInputError
from penstock.plan import LoaderState, State
from penstock.types import World

_SUPERSEDED = (
    "another iteration of this loader has begun, which ended this one: a loader has one iterator at a time; create a "
    "second loader to read the table twice at once"
)


class Loader:
    """Batches of a table: iterate over it, once for each epoch.

    - Each iteration reads the next epoch; `epoch` is its number, and `set_epoch` selects another. The order depends on
      the seed and the epoch number, and not on machines, ranks or workers.
    - With `until`, an iteration reads that many steps or epochs, or never ends, without a pause between epochs.
    - `state_dict` is the position after the last delivered batch, small enough for any checkpoint; after
      `load_state_dict` the next iteration continues there, with any number of ranks or workers and any batch size.
    - A loader of `following()` moves to the newest version of the branch at the end of each epoch. The state has the
      version that is being read, and loading it opens that version.
    - Breaking out of an iteration stops its reading. Worker processes serve all iterations; they end at `close`, or
      when the loader is dropped. A batch belongs to the user and is never overwritten.
    - One iterator reads a loader at a time: the first step of a new one ends the one before, whose next step raises
      `InvalidInputError`. Two loaders of one table are independent.
    - Under torch.distributed or jax.distributed, ranks compare the order, the epoch and the position at the first step
      of every iteration. If they differ, all ranks raise `InvalidInputError`.
    """

    def __init__(
        self,
        source: Source | MixtureSource,
        *,
        world: World,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None = None,
        agreement: RankAgreement | None,
        progress: Progress | None,
    ) -> None:
        if options.follow is not None and world.num_ranks > 1 and agreement is None:
            raise InvalidInputError(
                "following() with several ranks needs a process group in which they agree on the next version: "
                "initialise torch.distributed or jax.distributed instead of passing distributed=(rank, num_ranks)"
            )
        self._options, self._agreement, self._progress = options, agreement, progress
        self._open = partial(
            LoaderEngine, world=world, options=options, formatter=formatter, placement=placement,
            collector=StatsCollector(),
        )  # fmt: skip
        self._runs: weakref.WeakSet[EngineRun] = weakref.WeakSet()
        self._run: EngineRun | None = None
        self._lock = RLock()
        """Held while a run is started, or all are closed by any thread."""
        self._source, self._engine = source, self._open(source)
        self._finalizer = weakref.finalize(self, _shut_down, self._runs, self._engine)
        self._lease = self._engine.lease()
        self._state = self._engine.order.state(0, 0)
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        length, at = self._options.run, self._next
        if self._agreement is not None:
            self._agreement.check(at)
        self._resumed = False
        total = length.total_steps(self._engine.steps)
        run: EngineRun | None = None
        complete = False
        try:
            with ProgressDisplay(self._progress, self.stats, total, at.steps) as display:
                while not length.is_complete(at):
                    length.check(self._engine.steps)
                    run = self._run_from(at)
                    for batch in run.epoch(None if length.steps is None else length.steps - at.steps):
                        at = self._state = at.moved(*run.position, steps=at.steps + 1, epochs=at.epochs)
                        yield batch
                        del batch
                        display.tick()
                    if not run.position.consumed:
                        at = self._state = at.moved(*run.position, steps=at.steps, epochs=at.epochs + 1)
                        at = self._state = self._follow(at)
            complete = True
        finally:
            if not complete and run is not None:
                run.close()
                if self._run is run:
                    self._run = None
                    self._lease.release()

    def __len__(self) -> int:
        """Steps of an iteration, the same on every rank; of `following()`, if the version stays the same."""
        steps = self._options.run.total_steps(self._engine.steps)
        if steps is None:
            raise TypeError("a loader with until=None never ends and has no length")
        return steps

    def __getitem__(self, key: object) -> Any:
        raise TypeError(
            "a loader is read in order and cannot be indexed; index the table itself, or leave out batch_size, "
            "shuffle, num_workers, prefetch_factor and distributed to get a dataset of rows"
        )

    @property
    def epoch(self) -> int:
        """The number of the epoch being read; between iterations, of the next one."""
        run = self._run
        return run.position.epoch if run is not None and run.in_progress else self._next.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position after the last delivered batch, as a JSON value under a kilobyte; the same on every rank."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state in the next iteration; with its shuffle settings, if the loader was given none.

        Raises `InvalidInputError` for a state of another table, version, selection or order.
        """
        engine = self._engine
        if self._options.follow is not None:
            version = LoaderState.from_json(state).order.version
            engine = engine if version == engine.order.version else self._engine_at(version)
        layouts = engine.order.layouts_of(state)
        if layouts != engine.order.layouts:
            engine = self._open(engine.source, layouts=layouts)
        loaded = engine.resume(state)
        self._use(engine)
        if self._run is not None and self._run.partitioner is not engine.order.partitioner:
            self._run.close(_SUPERSEDED if self._run.in_progress else None)
            self._run = None
        self._state, self._resumed = loaded, True

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch of the next iteration; the epoch of a loaded state continues at its position."""
        if not isinstance(epoch, Integral) or epoch < 0:
            raise InvalidInputError(f"an epoch is a number from 0 on, not {epoch!r}")
        if not (self._resumed and self._state.epoch == epoch):
            self._state, self._resumed = self._engine.order.state(int(epoch), 0), False

    def stats(self) -> LoaderStats:
        """Statistics so far, and what the loader waits for."""
        return self._engine.stats()

    def close(self) -> None:
        """Stop all threads and processes; a closed loader can be iterated again."""
        with self._lock:
            if self._run is not None:
                self._run.close()
                self._run = None
            self._lease.release()
            _shut_down(self._runs, self._engine)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order, world, steps = self._engine.order, self._engine.world, self._engine.steps
        where = f", rank {world.rank} of {world.num_ranks}" if world.num_ranks > 1 else ""
        return f"Loader({order}, {order.partitioner.rows:,} rows in {steps:,} steps{where})"

    @property
    def _next(self) -> State:
        """Where the next iteration starts."""
        length = self._options.run
        return length.resume(self._state) if self._resumed else length.next_start(self._state)

    def _run_from(self, at: State) -> EngineRun:
        """A run that continues at a state: the last one, whose next batches are prefetched, or a new one."""
        with self._lock:
            run = self._run
            if run is not None:
                if not run.in_progress and not run.closed and run.position == (at.epoch, at.consumed):
                    return run
                run.close(_SUPERSEDED if run.in_progress else None)
            self._lease.acquire()
            run = self._run = self._engine.run(at)
            self._runs.add(run)
            return run

    def _follow(self, at: State) -> State:
        """Move to the newest version at the end of an epoch, all ranks or none; returns the state there."""
        follow, agreement = self._options.follow, self._agreement
        if follow is None:
            return at
        version = follow.newest() if agreement is None else agreement.gather(follow.newest)[0]
        if version == self._engine.order.version:
            return at
        opened: list[LoaderEngine] = []
        if agreement is None:
            opened.append(self._engine_at(version))
        else:
            agreement.gather(lambda: opened.append(self._engine_at(version)))
        self._use(opened[0])
        return self._engine.order.state(at.epoch, 0).moved(at.epoch, 0, steps=at.steps, epochs=at.epochs)

    def _engine_at(self, version: str) -> LoaderEngine:
        assert self._options.follow is not None
        reader, rows, draw = self._options.follow.open(version)
        return self._open(Source(reader, self._source.names, rows, draw))

    def _use(self, engine: LoaderEngine) -> None:
        """Read by another engine from now on."""
        if engine is self._engine:
            return
        self.close()
        self._finalizer.detach()
        self._engine, self._lease = engine, engine.lease()
        self._finalizer = weakref.finalize(self, _shut_down, self._runs, engine)


def _shut_down(runs: "weakref.WeakSet[EngineRun]", engine: LoaderEngine) -> None:
    for run in list(runs):
        run.stop()  # or it would restart the processes
    engine.close()
