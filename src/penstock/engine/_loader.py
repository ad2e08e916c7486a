"""The user's handle: batches of an epoch, length, state to resume from, statistics."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from penstock.engine._engine import LoaderEngine
from penstock.engine._lease import VersionLeases
from penstock.engine._options import LoaderOptions
from penstock.engine._progress import Progress, ProgressDisplay
from penstock.engine._run import EngineRun
from penstock.engine._stats import LoaderStats
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.sources import MixtureSource, Source, State
from penstock.errors import InvalidInputError
from penstock.plan import MixtureState
from penstock.types import World

_SUPERSEDED = (
    "another iteration of this loader has begun, which ended this one: a loader has one iterator at a time; create a "
    "second loader to read the table twice at once"
)

ConsistencyCheck = Callable[[State], None]
"""Compares the order and the position of all ranks; raises `InvalidInputError` if they differ."""


class Loader:
    """Batches of a table: iterate over it, once for each epoch.

    - Each iteration reads the next epoch; `epoch` is its number, and `set_epoch` selects another. The order depends on
      the seed and the epoch number, and not on machines, ranks or workers.
    - `state_dict` is the position after the last delivered batch, small enough for any checkpoint; after
      `load_state_dict` the next iteration continues there, with any number of ranks or workers and any batch size.
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
        check_ranks: ConsistencyCheck | None,
        progress: Progress | None,
    ) -> None:
        self._check_ranks, self._progress = check_ranks, progress
        self._engine = LoaderEngine(source, world=world, options=options, formatter=formatter, placement=placement)
        self._runs: weakref.WeakSet[EngineRun] = weakref.WeakSet()
        weakref.finalize(self, _shut_down, self._runs, self._engine)
        self._run: EngineRun | None = None
        self._next = self._state = self._engine.order.state(0, 0)
        self._resumed = False
        self._lease = VersionLeases([table.source.reader for table in self._engine.order.tables])

    def __iter__(self) -> Iterator[Any]:
        return self._epoch()

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._engine.steps

    def __getitem__(self, key: object) -> Any:
        raise TypeError(
            "a loader is read in order and cannot be indexed; index the table itself, or leave out batch_size, "
            "shuffle, num_workers, prefetch_factor and distributed to get a dataset of rows"
        )

    @property
    def epoch(self) -> int:
        """The number of the epoch being read; between iterations, of the next one."""
        run = self._run
        return run.state.epoch if run is not None and run.in_progress else self._next.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position after the last delivered batch, as a JSON value under a kilobyte; the same on every rank."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state in the next iteration.

        Raises `InvalidInputError` for a state of another table, version, selection or order.
        """
        self._next = self._state = self._engine.resume(state)
        if self._run is not None and isinstance(self._next, MixtureState):  # its order goes on from elsewhere
            self._run.close(_SUPERSEDED if self._run.in_progress else None)
            self._run = None
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch of the next iteration; the epoch of a loaded state continues at its position."""
        if not isinstance(epoch, Integral) or epoch < 0:
            raise InvalidInputError(f"an epoch is a number from 0 on, not {epoch!r}")
        if not (self._resumed and self._next.epoch == epoch):
            self._next = self._state = self._engine.order.state(int(epoch), 0)

    def stats(self) -> LoaderStats:
        """Statistics so far, and what the loader waits for."""
        return self._engine.stats()

    def close(self) -> None:
        """Stop all threads and processes; a closed loader can be iterated again."""
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
        order, world = self._engine.order, self._engine.world
        where = f", rank {world.rank} of {world.num_ranks}" if world.num_ranks > 1 else ""
        return f"Loader({order}, {order.partitioner.rows:,} rows in {len(self):,} steps{where})"

    def _epoch(self) -> Iterator[Any]:
        start, self._resumed = self._next, False
        if self._check_ranks is not None:
            self._check_ranks(start)
        self._next = replace(start, epoch=start.epoch + 1, consumed=0)
        run = self._run
        if run is None or run.in_progress or run.state != start:
            if run is not None:
                run.close(_SUPERSEDED if run.in_progress else None)
            self._lease.acquire()
            run = self._run = self._engine.run(start)
            self._runs.add(run)
        complete = False
        try:
            with ProgressDisplay(self._progress, self.stats, self._engine.steps) as display:
                for batch in run.epoch():
                    self._state = run.state
                    yield batch
                    del batch
                    display.tick()
            self._state = run.state
            complete = True
        finally:
            if not complete:
                self._lease.release()
                run.close()
                self._run = None if self._run is run else self._run


def _shut_down(runs: "weakref.WeakSet[EngineRun]", engine: LoaderEngine) -> None:
    for run in list(runs):
        run.stop()  # or it would restart the processes
    engine.close()
