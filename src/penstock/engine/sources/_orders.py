"""The order of what a loader reads: a single table, or a mixture; and where a state continues it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from penstock.engine._options import LoaderOptions
from penstock.engine._sizing import SizedTable
from penstock.engine.planning import Selection, make_selection
from penstock.engine.sources._source import MixtureSource, Source
from penstock.engine.workers import TableSource
from penstock.errors import InvalidInputError
from penstock.plan import (
    SEQUENTIAL,
    LoaderState,
    MixturePartitioner,
    MixturePoint,
    MixtureSpec,
    MixtureState,
    OrderSpec,
    RankPartitioner,
    Shuffle,
    derive_key,
    resolve_shuffle,
)
from penstock.types import World


@dataclass(frozen=True, slots=True)
class OrderedTable:
    """A table, the rows that are selected of it, and their order."""

    source: TableSource
    selection: Selection

    @classmethod
    def of(cls, name: str, source: Source, shuffle: Shuffle | None, seed: int) -> "OrderedTable":
        """Resolve the order of a table."""
        selection = make_selection(
            source.reader, source.names, source.rows, shuffled=shuffle is not None, draw=source.draw, seed=seed
        )
        layout = SEQUENTIAL
        if shuffle is not None:
            heavy = selection.heavy_row_bytes
            width = max(1.0, selection.row_bytes / heavy)
            layout = resolve_shuffle(
                shuffle, round(heavy * len(source)), heavy, width=width, shares_rows=selection.composition is not None
            )
        order = OrderSpec(
            table=source.reader.store.uri,
            version=source.reader.name,
            snapshot=selection.snapshot_digest,
            selection=selection.digest,
            rows=len(source),
            seed=seed,
            shuffled=shuffle is not None,
            shuffle=layout,
        )
        table = TableSource(
            name=name, reader=source.reader, names=tuple(source.names), rows=source.rows, draw=source.draw, order=order
        )
        return cls(table, selection)

    @property
    def lanes(self) -> int:
        return min(self.source.order.shuffle.lanes, max(1, self.source.order.rows))


class TableOrder:
    """The order of a single table."""

    def __init__(self, source: Source, world: World, options: LoaderOptions) -> None:
        options.decode.check(source.reader.snapshot.schema)
        self.tables = [OrderedTable.of("", source, options.shuffle, options.seed)]
        [table] = self.tables
        self.names: tuple[str, ...] = tuple(source.names)
        self.spec = table.source.order
        self.partitioner = RankPartitioner(len(source), table.lanes, world, options.batch_size, options.drop_last)

    def sized_tables(self) -> list[SizedTable]:
        """What sizes depend on."""
        [table] = self.tables
        owns, lanes = self.partitioner.owns_lanes, self.partitioner.lanes_per_rank
        return [SizedTable(table.selection, table.source.layout, self.spec.shuffle, lanes, owns, 1.0)]

    def state(self, epoch: int, consumed: int) -> LoaderState:
        """A position."""
        return LoaderState(self.spec, epoch, consumed)

    def resume(self, value: Mapping[str, Any]) -> LoaderState:
        """The position of a state; raises `InvalidInputError` if that has another order."""
        loaded = LoaderState.from_json(value)
        difference = self.spec.difference(loaded.order)
        if difference is not None:
            raise InvalidInputError(
                f"this state belongs to another run: it differs in {difference}; open {loaded.order.table} at "
                f"version {loaded.order.version} (penstock.load(…, version={loaded.order.version!r})), choose the same "
                "rows and columns, and give the loader the same seed and shuffle options"
            )
        return loaded

    @property
    def version(self) -> str:
        """The name of the version."""
        return self.spec.version

    def __str__(self) -> str:
        return f"{self.spec.table} at {self.spec.version}"


class MixedOrder:
    """The order of a mixture; `resume` changes it if sources or weights have changed since."""

    def __init__(self, source: MixtureSource, world: World, options: LoaderOptions) -> None:
        columns = {field.name for each in source.sources.values() for field in each.fields.values()}
        for name in () if isinstance(options.decode.decode, bool) else options.decode.decode:
            if name not in columns:
                raise InvalidInputError(f"decode={{…}} names column {name!r}, which no source of the mixture has")
        for each in source.sources.values():
            options.decode.only(list(each.fields)).check(each.reader.snapshot.schema)
        self.names = tuple(source.names)
        self.tables: list[OrderedTable] = []
        for name, each in source.sources.items():
            shuffle = source.shuffles.get(name, options.shuffle)
            own = name in source.shuffles and shuffle is not None
            seed = shuffle.seed if own and shuffle is not None else _source_seed(options.seed, name)
            self.tables.append(OrderedTable.of(name, each, shuffle, seed))
        self._world, self._options = world, options
        self.spec = MixtureSpec(
            names=tuple(source.sources),
            sources=tuple(table.source.order for table in self.tables),
            schedule=source.schedule_of(options.batch_size),
            rows=source.epoch_rows(options.batch_size),
            batch_size=options.batch_size if source.whole_batches else None,
        )
        self._origin = self.spec.start()
        self.partitioner = self._partitioner_from(self._origin)

    def _partitioner_from(self, point: MixturePoint) -> MixturePartitioner:
        return MixturePartitioner(
            self.spec.rows,
            max(table.lanes for table in self.tables),
            self._world,
            self._options.batch_size,
            self._options.drop_last,
            order=self.spec.order_from(point),
            source_lanes=tuple(table.lanes for table in self.tables),
            origin=(point.epoch, point.consumed, point.row * (self.spec.batch_size or 1)),
            whole_batches=self.spec.batch_size is not None,
        )

    def sized_tables(self) -> list[SizedTable]:
        """What sizes depend on."""
        shares = [1.0 if self.spec.batch_size else share for share in _largest_shares(self.spec)]
        return [
            SizedTable(
                table.selection, table.source.layout, table.source.order.shuffle,
                self.partitioner.source_lanes_per_rank(table.lanes), self.partitioner.owns_lanes, share,
            )
            for table, share in zip(self.tables, shares, strict=True)
        ]  # fmt: skip

    def state(self, epoch: int, consumed: int) -> MixtureState:
        """A position; raises `InvalidInputError` for one before a change of sources or weights."""
        state = MixtureState(self.spec, self._origin, epoch, consumed)
        assert state.point
        return state

    def resume(self, value: Mapping[str, Any]) -> MixtureState:
        """The position of a state; raises `InvalidInputError` if a source has another order."""
        loaded = MixtureState.from_json(value)
        self._origin = point = self.spec.resume(loaded.order, loaded.origin)
        self.partitioner = self._partitioner_from(point)
        return replace(loaded, order=self.spec, origin=point, epoch=point.epoch, consumed=point.consumed)

    @property
    def version(self) -> str:
        """The names of the versions."""
        return ", ".join(table.source.order.version for table in self.tables)

    def __str__(self) -> str:
        return ", ".join(
            f"{table.source.name}: {table.source.order.table} at {table.source.order.version}" for table in self.tables
        )


def _source_seed(seed: int, name: str) -> int:
    """The seed of a source; it depends on the name, so that sources can be added."""
    return derive_key(seed, int.from_bytes(blake2b(name.encode(), digest_size=8).digest())) >> 1


def _largest_shares(spec: MixtureSpec) -> Sequence[float]:
    """For each source the largest share of rows in any segment of the schedule."""
    return [max(weights[number] / sum(weights) for _, weights in spec.schedule) for number in range(len(spec.names))]
