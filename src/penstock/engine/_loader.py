"""What a user holds: batches of an epoch, a length, a state to resume from, and statistics."""

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

from penstock.engine._decode import Decoding
from penstock.engine._process import ProcessFinish
from penstock.engine._slab import Layout
from penstock.engine._stats import Gauge, LoaderStats
from penstock.engine._stream import Run, Stream, StreamOptions
from penstock.engine._view import Display, Live
from penstock.engine._work import Finish, Placement
from penstock.errors import InvalidInputError, PenstockError, PenstockWarning, StorageError
from penstock.plan import State
from penstock.table import Reader, Rows
from penstock.types import World

_LEASE_S = 7 * 86_400.0
_GIVE_BACK_S = 0.5

Agree = Callable[[State], None]
"""Asks the other ranks whether their order and point are the same; raises where they are not."""

_warned: set[str] = set()


class Loader:
    """Batches of a table: iterate over it, once for each epoch.

    - Every iteration reads the epoch after the last one begun; `epoch` tells its number, and `set_epoch` names another.
      The order depends on the seed and the epoch's number, and on nothing that machines differ in.
    - `state_dict` is the point behind the last batch that was delivered, small enough for any checkpoint; after
      `load_state_dict` the next iteration goes on from it, with any number of ranks, workers, and any batch size.
    - Leaving an iteration early stops its threads. A batch is yours for as long as you hold it.
    """

    def __init__(
        self,
        reader: Reader,
        names: Sequence[str],
        rows: range | Rows,
        *,
        world: World,
        options: StreamOptions,
        finish: Finish,
        placement: Placement | None = None,
        agree: Agree | None,
        display: Display | None,
    ) -> None:
        gauge = Gauge()
        count = max(1, options.num_workers)
        self._processes: list[ProcessFinish] = []
        if options.worker_type == "process":
            decoding = Decoding(options.decode, Layout(reader.snapshot.schema, names).loose)
            self._processes = [ProcessFinish(finish, decoding, gauge, processes=count) for _ in range(count)]
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        weakref.finalize(self, _let_go, self._runs, self._processes)
        self._reader, self._agree, self._display = reader, agree, display
        finishers: Sequence[Finish] = self._processes or [finish] * count
        self._stream = Stream(
            reader, names, rows, world=world, options=options, finishers=finishers, placement=placement, gauge=gauge
        )
        self._run: Run | None = None
        self._next = self._reached = State(self._stream.order, 0, 0)
        self._resumed = False
        self._lease = _Lease(reader)
        weakref.finalize(self, self._lease.give_back)

    def __iter__(self) -> Iterator[Any]:
        if self._agree is not None:
            self._agree(self._next)
            self._agree = None
        return self._epoch()

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._stream.steps

    def __getitem__(self, key: object) -> Any:
        raise TypeError(
            "a loader is read in order and cannot be indexed; index the table itself, or leave out batch_size, "
            "shuffle, num_workers, prefetch_factor and distributed to get a dataset of rows"
        )

    @property
    def epoch(self) -> int:
        """The number of the epoch that is being read; between iterations, of the one that the next will read."""
        run = self._run
        return run.state.epoch if run is not None and run.under_way else self._next.epoch

    def state_dict(self) -> dict[str, Any]:
        """The point that has been reached, as a JSON value of less than a kilobyte; the same on every rank."""
        return self._reached.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a point in the next iteration; refuses one of another table, version, selection or order."""
        loaded = State.from_json(state)
        difference = self._stream.order.difference(loaded.order)
        if difference is not None:
            raise InvalidInputError(
                f"this state belongs to another run: it differs in {difference}; open {loaded.order.table} at "
                f"version {loaded.order.version} (penstock.load(…, version={loaded.order.version!r})), choose the same "
                "rows and columns, and give the loader the same seed and shuffle options"
            )
        self._next = self._reached = loaded
        self._resumed = True

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next iteration reads; one that was loaded from a state goes on where it was."""
        if not isinstance(epoch, Integral) or epoch < 0:
            raise InvalidInputError(f"an epoch is a number from 0 on, not {epoch!r}")
        if not (self._resumed and self._next.epoch == epoch):
            self._next = self._reached = State(self._stream.order, int(epoch), 0)

    def stats(self) -> LoaderStats:
        """What the loader has done so far, and what it waits for."""
        return self._stream.stats()

    def close(self) -> None:
        """Stop every thread and process; a closed loader can be iterated again."""
        if self._run is not None:
            self._run.close()
            self._run = None
        self._lease.give_back()
        _let_go(self._runs, self._processes)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order, world = self._stream.order, self._stream.world
        where = f", rank {world.rank} of {world.num_ranks}" if world.num_ranks > 1 else ""
        return f"Loader({order.table} at {order.version}, {order.rows:,} rows in {len(self):,} steps{where})"

    def _epoch(self) -> Iterator[Any]:
        start, self._resumed = self._next, False
        self._next = State(start.order, start.epoch + 1, 0)
        run = self._run
        if run is None or run.under_way or run.state != start:
            if run is not None:
                run.close()
            self._lease.take()
            for process in self._processes:
                process.open()
            run = self._run = self._stream.run(start)
            self._runs.add(run)
        complete = False
        try:
            with Live(self._display, self.stats, self._stream.steps) as live:
                for batch in run.epoch():
                    self._reached = run.state
                    yield batch
                    del batch
                    live.tick()
            self._reached = run.state
            complete = True
        finally:
            if not complete:
                self._lease.give_back()
                run.close()
                self._run = None if self._run is run else self._run


class _Lease:
    """Keeps a version from vacuum, by a thread: neither the first batch nor the end waits for a slow store."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Hold the version from now on."""
        if self._over is None:
            self._over = threading.Event()
            self._thread = threading.Thread(
                target=_hold, args=(self._reader, self._over), name="penstock-lease", daemon=True
            )
            self._thread.start()

    def give_back(self) -> None:
        """Let the version go."""
        if self._over is not None and self._thread is not None:
            self._over.set()
            self._thread.join(_GIVE_BACK_S)
        self._over = self._thread = None


def _hold(reader: Reader, over: threading.Event) -> None:
    try:
        with reader.lease(_LEASE_S) as held:
            if not held:
                _warn_once(reader)
            over.wait()
    except StorageError:  # a store that only serves files refuses in its own way
        _warn_once(reader)
        over.wait()
    except PenstockError:  # if the version is gone, reading it says so
        pass


def _warn_once(reader: Reader) -> None:
    if reader.store.uri not in _warned:
        _warned.add(reader.store.uri)
        warnings.warn(reader.without_lease, PenstockWarning, stacklevel=3)


def _let_go(runs: "weakref.WeakSet[Run]", processes: Sequence[ProcessFinish]) -> None:
    for run in list(runs):
        run.stop()  # or it would start processes anew
    for process in processes:
        process.close()
