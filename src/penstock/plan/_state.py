"""The state of a loader: a small JSON value from which any number of ranks can resume."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

from penstock.errors import InvalidInputError
from penstock.plan._options import ShuffleLayout

FORMAT = 3


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """Everything that determines the order of a run: equal specs read the same row at every position."""

    table: str
    """The URI of the table; informative, since a copy elsewhere has the same order."""
    version: str
    """Such as `main@7`; informative."""
    snapshot: str
    selection: str
    """Digest of the selected rows and columns."""
    rows: int
    seed: int
    shuffled: bool
    shuffle: ShuffleLayout

    @property
    def lanes(self) -> int:
        """Lanes of the order; without shuffle there is one."""
        return min(self.shuffle.lanes, max(1, self.rows))

    def difference(self, other: "OrderSpec") -> str | None:
        """A description of the first difference; None if both specs determine the same order."""
        for name, label in _LABELS.items():
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                return f"{label}: {there} there, {here} here"
        return None


_LABELS = {
    "snapshot": "the snapshot",
    "selection": "the selection of rows and columns",
    "rows": "the number of rows",
    "seed": "the seed",
    "shuffled": "whether rows are shuffled",
    "shuffle": "the shuffle options",
}


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A point between two steps of a run."""

    order: OrderSpec
    epoch: int
    consumed: int
    """Positions of the epoch read so far, over all ranks."""
    steps: int = 0
    """Steps of the iteration so far, over all its epochs."""
    epochs: int = 0
    """Epochs that the iteration has completed."""

    def moved(self, epoch: int, consumed: int, *, steps: int, epochs: int) -> "LoaderState":
        """Another point of the same run; made for each batch, where `replace` would take four times as long."""
        return LoaderState(self.order, epoch, consumed, steps, epochs)

    def to_json(self) -> dict[str, Any]:
        """A JSON value of less than 1 kB."""
        return {"penstock": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LoaderState":
        """Inverse of `to_json`; raises `InvalidInputError` for other values."""
        if not isinstance(value, Mapping) or "penstock" not in value:
            raise InvalidInputError("this is not the state of a Penstock loader: pass what its state_dict() returned")
        if "sources" in value:
            raise InvalidInputError("this is the state of a mixture, and this loader reads a single table")
        if value["penstock"] != FORMAT:
            raise InvalidInputError(f"this state has format {value['penstock']}; this version reads format {FORMAT}")
        try:
            order = dict(value["order"])
            shuffle = ShuffleLayout(**order.pop("shuffle"))
            counts = [whole_count(name, value[name]) for name in ("epoch", "consumed")]
            counts += [whole_count(name, value.get(name, 0)) for name in ("steps", "epochs")]  # older states lack them
            state = cls(OrderSpec(**order, shuffle=shuffle), *counts)
            if state.consumed > state.order.rows:
                raise ValueError(f"{state.consumed} of {state.order.rows} rows were read")
            return state
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this state of a loader is damaged: {error!r}") from error


def whole_count(name: str, value: object) -> int:
    """A number from 0 on; raises `ValueError` for anything else."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r} and not a whole number from 0 on")
    return int(value)
