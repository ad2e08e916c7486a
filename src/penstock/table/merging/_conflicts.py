"""Conflicts of a merge, and how they are resolved."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from penstock.errors import InvalidInputError, MergeConflictError

Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Conflict:
    """One thing that the two branches changed differently."""

    type: Literal["value", "deleted by us", "deleted by them", "column"]
    """A value that both changed; a row that one side deleted and the other changed; or a column."""
    column: str | None
    row_id: int | None
    base: Any = None
    ours: Any = None
    theirs: Any = None

    def __str__(self) -> str:
        if self.type == "column":
            return f"column {self.column!r}: ours {self.ours}, theirs {self.theirs}"
        if self.type == "value":
            return f"row {self.row_id}, column {self.column!r}: ours {_short(self.ours)}, theirs {_short(self.theirs)}"
        return f"row {self.row_id}: ours {self.ours}, theirs {self.theirs}"

    @property
    def mirrored(self) -> "Conflict":
        """The conflict as the other side sees it."""
        types: dict[str, Any] = {"deleted by us": "deleted by them", "deleted by them": "deleted by us"}
        return replace(self, type=types.get(self.type, self.type), ours=self.theirs, theirs=self.ours)


OnConflict = Literal["raise", "ours", "theirs"] | Callable[[Conflict], Any]
_MAX_SHOWN = 5


class Resolver:
    """Collects conflicts and decides each by the caller's policy."""

    def __init__(self, on_conflict: OnConflict) -> None:
        if on_conflict not in ("raise", "ours", "theirs") and not callable(on_conflict):
            raise InvalidInputError(f"on_conflict must be raise, ours, theirs or a function, not {on_conflict!r}")
        self._on_conflict = on_conflict
        self.conflicts: list[Conflict] = []

    def choose(self, conflict: Conflict) -> Side:
        """The side that wins a conflict about a row or a column."""
        answer = self._resolve(conflict)
        if answer not in ("ours", "theirs"):
            raise InvalidInputError(f"for {conflict} on_conflict must return 'ours' or 'theirs', not {answer!r}")
        side: Side = answer
        return side

    def choose_column(self, name: str, ours: str, theirs: str) -> Side:
        """The side that wins a conflict about a column, from what each did to it."""
        return self.choose(Conflict("column", name, None, ours=ours, theirs=theirs))

    def choose_value(self, conflict: Conflict) -> tuple[Side | None, Any]:
        """The side whose value wins; or None, and the value that the caller's function returned."""
        answer = self._resolve(conflict)
        return (None, answer) if callable(self._on_conflict) else (answer, None)

    def check(self) -> None:
        """Raise `MergeConflictError` for the conflicts so far, if the policy is to raise."""
        if self.conflicts and self._on_conflict == "raise":
            raise MergeConflictError(
                f"{describe(self.conflicts)}. Pass on_conflict='ours', 'theirs' or a function", tuple(self.conflicts)
            )

    def _resolve(self, conflict: Conflict) -> Any:
        self.conflicts.append(conflict)
        if callable(self._on_conflict):
            return self._on_conflict(conflict)
        return "ours" if self._on_conflict == "raise" else self._on_conflict  # `check` raises once all are collected


def describe(conflicts: list[Conflict]) -> str:
    """The number of conflicts, and the first few."""
    shown = "; ".join(map(str, conflicts[:_MAX_SHOWN]))
    more = f"; and {len(conflicts) - _MAX_SHOWN} more" if len(conflicts) > _MAX_SHOWN else ""
    return f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}: {shown}{more}"


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) < 40 else text[:37] + "…"
