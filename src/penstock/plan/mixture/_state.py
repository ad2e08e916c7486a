"""The state of a mixture: a small JSON value that holds where every source is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.errors import InvalidInputError
from penstock.plan._options import ShuffleLayout
from penstock.plan._state import FORMAT, LoaderState, OrderSpec, whole_count
from penstock.plan.mixture._order import MixtureOrder, Segment, segments_of

Schedule = tuple[tuple[int, tuple[int, ...]], ...]
"""Weights of the sources from a row on; in a mixture of whole batches, from a batch on."""


@dataclass(frozen=True, slots=True)
class MixturePoint:
    """A position of a mixture, and what was read before it."""

    epoch: int
    consumed: int
    """Rows of the epoch read so far, over all ranks."""
    row: int
    """Rows of the mixture read so far, over all epochs; or batches, in a mixture of whole batches."""
    taken: tuple[int, ...]
    """How many of them came from each source."""
    segment: Segment
    """The weights since some row before; a schedule may change them later."""


@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """Everything that determines the order of a mixture."""

    names: tuple[str, ...]
    sources: tuple[OrderSpec, ...]
    schedule: Schedule
    rows: int
    """Of an epoch."""
    batch_size: int | None
    """Rows of a batch, if all come from one source."""

    @property
    def table(self) -> str:
        return ", ".join(source.table for source in self.sources)

    @property
    def version(self) -> str:
        return ", ".join(f"{name} at {source.version}" for name, source in zip(self.names, self.sources, strict=True))

    def start(self) -> MixturePoint:
        """The beginning."""
        none_taken = (0,) * len(self.names)
        return MixturePoint(0, 0, 0, none_taken, Segment(0, self.schedule[0][1], none_taken))

    def order_from(self, point: MixturePoint) -> MixtureOrder:
        """The order from a point on."""
        later = tuple(entry for entry in self.schedule if entry[0] > point.segment.start)
        schedule = ((point.segment.start, point.segment.weights), *later)
        segments = segments_of(schedule, start=point.segment.start, taken=point.segment.taken)
        return MixtureOrder(segments, (point.row, point.taken))

    def resume(self, other: "MixtureSpec", point: MixturePoint) -> MixturePoint:
        """Where this mixture continues after a point of another one.

        Sources that both have continue where they are; if sources or weights differ, these weights begin here. Raises
        `InvalidInputError` if a source has another order, or batches another size.
        """
        if self.batch_size != other.batch_size:
            raise InvalidInputError(
                'with per_batch="single" the order depends on the batch size: this state belongs to '
                f"{_batches(other.batch_size)}, and this loader has {_batches(self.batch_size)}"
            )
        for name, order in zip(self.names, self.sources, strict=True):
            if name in other.names:
                _check_source(name, order, other.sources[other.names.index(name)])
        if self.names != other.names or self.schedule != other.schedule:
            known = dict(zip(other.names, point.taken, strict=True))
            taken = tuple(known.get(name, 0) for name in self.names)
            weights = [weights for row, weights in self.schedule if row <= point.row][-1]
            point = replace(point, taken=taken, segment=Segment(point.row, weights, taken))
        if point.consumed > self.rows or (self.rows != other.rows and point.consumed == self.rows):
            point = replace(point, epoch=point.epoch + 1, consumed=0)
        return point

    def difference(self, other: "MixtureSpec") -> str | None:
        """A description of the first difference; None if both determine the same order."""
        for label, here, there in (
            ("the sources", self.names, other.names),
            ("the weights", self.schedule, other.schedule),
            ("the number of rows", self.rows, other.rows),
            ("the size of batches of one source", self.batch_size, other.batch_size),
        ):
            if here != there:
                return f"{label}: {there} there, {here} here"
        for name, mine, theirs in zip(self.names, self.sources, other.sources, strict=True):
            difference = mine.difference(theirs)
            if difference is not None:
                return f"source {name!r}, {difference}"
        return None


@dataclass(frozen=True, slots=True)
class MixtureState:
    """A point between two steps of a run over a mixture; see `LoaderState`."""

    order: MixtureSpec
    origin: MixturePoint
    """Where the order was last computed from."""
    epoch: int
    consumed: int
    steps: int = 0
    epochs: int = 0

    @property
    def point(self) -> MixturePoint:
        """Where every source is."""
        unit = self.order.batch_size or 1
        ahead = (self.epoch - self.origin.epoch) * self.order.rows + self.consumed - self.origin.consumed
        row = self.origin.row + ahead // unit
        if row < self.origin.segment.start:
            raise InvalidInputError(
                f"epoch {self.epoch} is before the row at which the sources or weights of this mixture were changed"
            )
        order = self.order.order_from(self.origin)
        segment = [segment for segment in order.segments if segment.start <= row][-1]
        return MixturePoint(self.epoch, self.consumed, row, tuple(order.counts(row).tolist()), segment)

    def moved(self, epoch: int, consumed: int, *, steps: int, epochs: int) -> "MixtureState":
        return MixtureState(self.order, self.origin, epoch, consumed, steps, epochs)

    def to_json(self) -> dict[str, Any]:
        """A JSON value of a few hundred bytes for each source."""
        spec, point = self.order, self.point
        sources = {
            name: {"order": asdict(source), "taken": taken, "before": before}
            for name, source, taken, before in zip(
                spec.names, spec.sources, point.taken, point.segment.taken, strict=True
            )
        }
        return {
            "penstock": FORMAT, "epoch": self.epoch, "consumed": self.consumed, "steps": self.steps,
            "epochs": self.epochs, "row": point.row, "rows": spec.rows,
            "batch_size": spec.batch_size, "schedule": [[row, list(weights)] for row, weights in spec.schedule],
            "segment": [point.segment.start, list(point.segment.weights)], "sources": sources,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "MixtureState":
        """Inverse of `to_json`; raises `InvalidInputError` for other values."""
        if not isinstance(value, Mapping) or "sources" not in value:
            raise InvalidInputError(
                "this is not the state of a mixture: pass what the state_dict() of a mixture's loader returned"
            )
        if value["penstock"] != FORMAT:
            raise InvalidInputError(f"this state has format {value['penstock']}; this version reads format {FORMAT}")
        try:
            sources = value["sources"]
            orders = []
            for source in sources.values():
                order = dict(source["order"])
                orders.append(OrderSpec(**order | {"shuffle": ShuffleLayout(**order["shuffle"])}))
            schedule = tuple((int(row), _whole(weights)) for row, weights in value["schedule"])
            batch_size = value["batch_size"]
            spec = MixtureSpec(
                tuple(sources), tuple(orders), schedule, int(value["rows"]),
                None if batch_size is None else int(batch_size),
            )  # fmt: skip
            start, weights = value["segment"]
            epoch, consumed, row = (whole_count(name, value[name]) for name in ("epoch", "consumed", "row"))
            taken, before = (_whole(source[name] for source in sources.values()) for name in ("taken", "before"))
            segment = Segment(int(start), _whole(weights), before)
            if not schedule or sum(taken) > row or len(segment.weights) != len(taken):
                raise ValueError("counts of rows do not match")
            counts = [whole_count(name, value[name]) for name in ("steps", "epochs")]
            return cls(spec, MixturePoint(epoch, consumed, row, taken, segment), epoch, consumed, *counts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this state of a mixture is damaged: {error!r}") from error


State = LoaderState | MixtureState
"""A position in a table, or in a mixture."""


def _whole(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def _batches(size: int | None) -> str:
    return "a mixture of rows" if size is None else f"batches of {size} rows"


def _check_source(name: str, mine: OrderSpec, theirs: OrderSpec) -> None:
    difference = mine.difference(theirs)
    if difference is not None:
        raise InvalidInputError(
            f"source {name!r} differs from that of this state in {difference}; open {theirs.table} at version "
            f"{theirs.version}, choose the same rows, columns, seed and shuffle options, or give it another name"
        )
