"""The order of what a loader reads: a table, or a mixture of tables; and where a state continues it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from penstock.engine._options import LoaderOptions
from penstock.engine.planning import Selection
from penstock.engine.sources._source import MixtureSource, Source
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
    ShuffleLayout,
    derive_key,
    resolve_shuffle,
)
from penstock.types import World

Layouts = Mapping[str | None, ShuffleLayout]
"""How tables are shuffled, by their name in a mixture; None for a table that is read alone."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OrderedSource(Source):
    """A source, and the order of its rows; a worker process gets a copy."""

    name: str | None
    """In a mixture; None if the loader reads this table alone."""
    order: OrderSpec


class Order:
    """The order of a table, or of a mixture."""

    partitioner: RankPartitioner
    shares: Sequence[float] = (1.0,)
    """For each table the largest share of the rows of a batch that come from it."""

    def __init__(self, layouts: Layouts) -> None:
        """`layouts` take the place of those that derive from the tables."""
        self._given = layouts
        self.layouts: dict[str | None, ShuffleLayout] = {}
        """Those that derive from the tables, or were given in their place."""
        self.tables: list[OrderedSource] = []
        self.selections: list[Selection] = []

    def _add(self, name: str | None, source: Source, shuffle: Shuffle | None, seed: int) -> None:
        """Add a table, which has a name in a mixture, and resolve its order."""
        selection = source.selection(shuffled=shuffle is not None, seed=seed)
        derived = shuffle is not None and shuffle.derived
        if shuffle is None:
            layout = SEQUENTIAL
        elif derived and name in self._given:
            layout = self._given[name]
        else:
            heavy = selection.heavy_row_bytes
            layout = resolve_shuffle(
                shuffle,
                round(heavy * len(source)),
                heavy,
                width=max(1.0, selection.row_bytes / heavy),
                shares_rows=selection.composition is not None,
                in_mixture=name is not None,
            )
        if derived:
            self.layouts[name] = layout
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
        self.tables.append(
            OrderedSource(source.reader, tuple(source.names), source.rows, source.draw, name=name, order=order)
        )
        self.selections.append(selection)

    @property
    def lanes_per_rank(self) -> list[int]:
        """For each table the largest number of its lanes that a rank reads from."""
        return [self.partitioner.lanes_per_rank]

    @property
    def version(self) -> str:
        """The name of the version, or of those of all tables."""
        return ", ".join(table.order.version for table in self.tables)

    def __str__(self) -> str:
        return ", ".join(
            ("" if table.name is None else f"{table.name}: ") + f"{table.order.table} at {table.order.version}"
            for table in self.tables
        )


class TableOrder(Order):
    """The order of a single table."""

    def __init__(self, source: Source, world: World, options: LoaderOptions, layouts: Layouts) -> None:
        super().__init__(layouts)
        options.decode.check(source.reader.snapshot.schema)
        self._add(None, source, options.shuffle, options.seed)
        [table] = self.tables
        self._spec = table.order
        self.partitioner = RankPartitioner(len(source), self._spec.lanes, world, options.batch_size, options.drop_last)

    def state(self, epoch: int, consumed: int) -> LoaderState:
        """A position."""
        return LoaderState(self._spec, epoch, consumed)

    def layouts_of(self, value: Mapping[str, Any]) -> Layouts:
        """`layouts` as a state has them: another release may have derived others."""
        shuffle = LoaderState.from_json(value).order.shuffle
        return dict.fromkeys(self.layouts, shuffle)

    def resume(self, value: Mapping[str, Any]) -> LoaderState:
        """The position of a state; raises `InvalidInputError` if it belongs to another order."""
        loaded = LoaderState.from_json(value)
        difference = self._spec.difference(loaded.order)
        if difference is not None:
            raise InvalidInputError(
                f"this state belongs to another run: it differs in {difference}; open {loaded.order.table} at "
                f"version {loaded.order.version} (penstock.load(…, version={loaded.order.version!r})), choose the same "
                "rows and columns, and give the loader the same seed and shuffle options"
            )
        return loaded


class MixedOrder(Order):
    """The order of a mixture; `resume` changes it if sources or weights have changed since."""

    partitioner: MixturePartitioner

    def __init__(self, source: MixtureSource, world: World, options: LoaderOptions, layouts: Layouts) -> None:
        super().__init__(layouts)
        columns = {field.name for each in source.sources.values() for field in each.fields.values()}
        for name in () if isinstance(options.decode.decode, bool) else options.decode.decode:
            if name not in columns:
                raise InvalidInputError(f"decode={{…}} names column {name!r}, which no source of the mixture has")
        for name, each in source.sources.items():
            options.decode.only(list(each.fields)).check(each.reader.snapshot.schema)
            own = source.shuffles.get(name)
            seed = _source_seed(options.seed, name) if own is None else own.seed
            self._add(name, each, source.shuffles.get(name, options.shuffle), seed)
        self._world, self._options = world, options
        self._spec = MixtureSpec(
            names=tuple(source.sources),
            sources=tuple(table.order for table in self.tables),
            schedule=source.schedule_of(options.batch_size),
            rows=source.epoch_rows(options.batch_size),
            batch_size=options.batch_size if source.whole_batches else None,
        )
        weights = [each for _, each in self._spec.schedule]
        self.shares = [
            1.0 if source.whole_batches else max(each[number] / sum(each) for each in weights)
            for number in range(len(self.tables))
        ]
        self._begin_at(self._spec.start())

    def _begin_at(self, point: MixturePoint) -> None:
        """Read the rows from a point on in the order that begins there."""
        lanes = tuple(order.lanes for order in self._spec.sources)
        self._origin = point
        self.partitioner = MixturePartitioner(
            self._spec.rows,
            max(lanes),
            self._world,
            self._options.batch_size,
            self._options.drop_last,
            order=self._spec.order_from(point),
            source_lanes=lanes,
            origin=(point.epoch, point.consumed, point.row * (self._spec.batch_size or 1)),
            whole_batches=self._spec.batch_size is not None,
        )

    @property
    def lanes_per_rank(self) -> list[int]:
        return [self.partitioner.source_lanes_per_rank(order.lanes) for order in self._spec.sources]

    def state(self, epoch: int, consumed: int) -> MixtureState:
        """A position; raises `InvalidInputError` for one before a change of sources or weights."""
        state = MixtureState(self._spec, self._origin, epoch, consumed)
        assert state.point
        return state

    def layouts_of(self, value: Mapping[str, Any]) -> Layouts:
        """See `TableOrder`; those of sources that the state lacks are derived."""
        order = MixtureState.from_json(value).order
        orders = dict(zip(order.names, order.sources, strict=True))
        return {name: orders[name].shuffle if name in orders else own for name, own in self.layouts.items()}

    def resume(self, value: Mapping[str, Any]) -> MixtureState:
        """The position of a state, which may change the order; raises `InvalidInputError` if it belongs to another."""
        loaded = MixtureState.from_json(value)
        point = self._spec.resume(loaded.order, loaded.origin)
        self._begin_at(point)
        return replace(loaded, order=self._spec, origin=point, epoch=point.epoch, consumed=point.consumed)


def make_order(
    source: Source | MixtureSource, world: World, options: LoaderOptions, layouts: Layouts
) -> TableOrder | MixedOrder:
    """The order of a table, or of a mixture; `layouts` take the place of those that derive from the tables."""
    if isinstance(source, MixtureSource):
        return MixedOrder(source, world, options, layouts)
    return TableOrder(source, world, options, layouts)


def _source_seed(seed: int, name: str) -> int:
    """The seed of a source; it depends on the name, so that sources can be added."""
    return derive_key(seed, int.from_bytes(blake2b(name.encode(), digest_size=8).digest())) >> 1
