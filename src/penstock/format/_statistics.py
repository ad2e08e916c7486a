"""Bounds of a column's values: in a fragment, below a node of the manifest tree, and in each page of a file.

Bounds let a search leave out what cannot match. They are optional: one that is missing, or that does not make sense,
bounds nothing. Those of nodes and pages are decoded when a search needs them, because most readers do not.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.types import cached_property

MAX_NODE_FIELDS = 64
"""The fields of a node that have bounds: a manifest of a table with thousands of columns stays small."""
STATISTICS = pa.struct([("field", pa.int64()), ("nulls", pa.int64()), ("low", pa.string()), ("high", pa.string())])
PAGE_BOUNDS = pa.struct(
    [
        ("field", pa.int64()),
        ("nulls", pa.list_(pa.int32())),
        ("low", pa.list_(pa.string())),
        ("high", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bounds of a column's values in a fragment or below a node; valid, but not necessarily tight."""

    field: int
    nulls: int
    """The number of nulls, at most."""
    low: str | None
    """JSON of a lower bound; None if unknown."""
    high: str | None

    def union(self, other: "Statistics | None") -> "Statistics":
        """Bounds that hold for both."""
        return self if other is None else _union([self, other])


def union_statistics(parts: Iterable[Iterable[Statistics]]) -> tuple[Statistics, ...]:
    """Bounds that hold for all parts; a field that is unknown in one of them is left out."""
    by_field: dict[int, list[Statistics]] = {}
    count = 0
    for part in parts:
        count += 1
        for bounds in part:
            by_field.setdefault(bounds.field, []).append(bounds)
    common = [found for found in by_field.values() if len(found) == count]
    return tuple(_union(found) for found in common[:MAX_NODE_FIELDS])


def _union(parts: Sequence[Statistics]) -> Statistics:
    return Statistics(
        parts[0].field,
        sum(part.nulls for part in parts),
        _bound(min, [part.low for part in parts]),
        _bound(max, [part.high for part in parts]),
    )


def _bound(choose: Callable[..., Any], bounds: Sequence[str | None]) -> str | None:
    if None in bounds:
        return None
    try:
        return choose(set(bounds), key=load_bound)  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError):  # a bound that is none bounds nothing
        return None


def load_bound(text: str) -> Any:
    """The value of a bound; raises `ValueError` or `RecursionError` if it is none."""
    return json.loads(text, parse_constant=_reject)


def _reject(name: str) -> None:
    raise ValueError(f"{name} bounds nothing")


class NodeStatistics:
    """The statistics of a node, as stored in its parent: Arrow structs, or JSON in a snapshot."""

    __slots__ = ("_decoded", "_stored")

    def __init__(self, stored: pa.StructArray | Sequence[Any]) -> None:
        self._stored = stored
        self._decoded: dict[int, Statistics] | None = None

    @property
    def by_field(self) -> dict[int, Statistics]:
        """The statistics by field id; decoded once."""
        if self._decoded is None:
            found = self._stored
            rows = (
                _from_json(found)
                if not isinstance(found, pa.Array)
                else (Statistics(**row) for row in found.to_pylist())
            )
            self._decoded = {bounds.field: bounds for bounds in rows}
        return self._decoded

    @classmethod
    def of(cls, statistics: Iterable[Statistics]) -> "NodeStatistics":
        """Statistics that are not stored yet."""
        made = cls(())
        made._decoded = {bounds.field: bounds for bounds in statistics}
        return made

    def to_json(self) -> list[list[Any]]:
        """As stored in a snapshot."""
        return [[f"{each.field:016x}", each.nulls, each.low, each.high] for each in self.by_field.values()]


def _from_json(rows: Sequence[Any]) -> Iterable[Statistics]:
    """The valid statistics among those of a snapshot."""
    for row in rows:
        if not (isinstance(row, list) and len(row) == 4):
            continue
        field, nulls, low, high = row
        if not (isinstance(field, str) and type(nulls) is int and nulls >= 0):
            continue
        if all(bound is None or isinstance(bound, str) for bound in (low, high)):
            try:
                yield Statistics(int(field, 16), nulls, low, high)
            except ValueError:
                continue


@dataclass
class PageBounds:
    """Bounds of a column's values in each page of a file."""

    nulls: npt.NDArray[np.int64]
    """The number of nulls."""
    low: Sequence[str | None]
    high: Sequence[str | None]
    typed: object = None
    """The same in the form that a search needs, which keeps it here."""


class FilePageBounds:
    """The page bounds of a file, as stored: an Arrow struct for each field that has them."""

    def __init__(self, stored: pa.StructArray, pages: int) -> None:
        self.stored, self._pages = stored, pages

    @cached_property
    def by_field(self) -> dict[int, PageBounds]:
        """The bounds by field id, without those that are not one for each page; decoded once."""
        found = {}
        for row in self.stored.to_pylist():
            lists = [None] if row is None else [row["nulls"], row["low"], row["high"]]
            if all(each is not None and len(each) == self._pages for each in lists) and None not in row["nulls"]:
                found[row["field"]] = PageBounds(np.array(row["nulls"], np.int64), row["low"], row["high"])
        return found

    @classmethod
    def of(cls, bounds: Sequence[dict[str, Any]], pages: int) -> "FilePageBounds | None":
        """Bounds that are not stored yet: the members of each field."""
        return cls(pa.array(bounds, PAGE_BOUNDS), pages) if bounds else None
