"""Where a run stands, as a small JSON value that any number of ranks can go on from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import InvalidInputError
from penstock.plan._options import Shuffle

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that decides the order of a run; two that differ in anything read other rows at the same position."""

    table: str
    """For people: where the table is; a copy elsewhere is the same."""
    version: str
    """For people: `main@7`."""
    snapshot: str
    selection: str
    """Digest of the rows and columns chosen."""
    rows: int
    seed: int
    shuffled: bool
    shuffle: Shuffle

    def difference(self, other: "Order") -> str | None:
        """In what another order differs, in words; None where it is the same."""
        for name, words in _WORDS.items():
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"{words}: {its} there, {mine} here"
        return None


_WORDS = {
    "snapshot": "the snapshot",
    "selection": "the selection of rows and columns",
    "rows": "the number of rows",
    "seed": "the seed",
    "shuffled": "whether rows are shuffled",
    "shuffle": "the shuffle options",
}


@dataclass(frozen=True, slots=True)
class State:
    """A point between two steps of a run."""

    order: Order
    epoch: int
    consumed: int
    """Positions of the epoch that all ranks together have read."""

    def to_json(self) -> dict[str, Any]:
        """A value of less than a kilobyte."""
        return {"penstock": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "State":
        """Undo `to_json`."""
        if not isinstance(value, Mapping) or "penstock" not in value:
            raise InvalidInputError("this is not the state of a Penstock loader: pass what its state_dict() returned")
        if value["penstock"] != _FORMAT:
            raise InvalidInputError(f"this state has format {value['penstock']}, and this version reads {_FORMAT}")
        try:
            order = dict(value["order"])
            shuffle = Shuffle(**order.pop("shuffle"))
            state = cls(Order(**order, shuffle=shuffle), int(value["epoch"]), int(value["consumed"]))
            if not 0 <= state.consumed <= state.order.rows:
                raise ValueError(f"{state.consumed} of {state.order.rows} rows were read")
            return state
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this state of a loader is damaged: {error!r}") from error
