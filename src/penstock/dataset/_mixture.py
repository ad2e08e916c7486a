"""Mix views in proportion to weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal

from penstock.dataset._epoch_view import EpochView
from penstock.dataset._options import as_shuffle
from penstock.dataset._samples import SampleView
from penstock.dataset._streaming import Streaming
from penstock.dataset._view import View
from penstock.engine import SOURCE, MixtureSource, Source, schema_of
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Field, Schema, value_kind
from penstock.format.kinds import Tensor, any_shape
from penstock.plan import CU_SEQLENS, Shuffle, whole_weights
from penstock.table import ROW_ID, is_position, without_quarantined

Weights = Mapping[str, float]
AnyView = View | SampleView | EpochView


def mix(
    sources: Mapping[str, View | SampleView | EpochView],
    *,
    weights: Weights | Sequence[tuple[int, Weights]] | None = None,
    stop: Literal["first", "all"] | int = "first",
    per_batch: Literal["mixed", "single"] = "mixed",
    columns: Literal["common", "union"] | Sequence[str] = "common",
    shuffle: Mapping[str, bool | Shuffle] | None = None,
) -> "Mixture":
    """Rows of several views, in proportion to weights; each keeps its own version, order and epochs.

    sources: views by name, in the order of their numbers in `batch["_source"]`.
    weights: how many rows come from each source, relative to the others; by default in proportion to their rows. Over
        any first n rows, a source has n x its share of the weights, to within one row. A list of (row, weights) changes
        them from that row of the mixture on, counted over all epochs; the first row is 0.
    stop: where an epoch ends: with the "first" source to end, so that none is read twice; when "all" have been read at
        least once; or after a number of rows. A source that ends begins its next epoch; the next epoch of the mixture
        goes on where each source is.
    per_batch: "mixed" mixes the rows of a batch; with "single", all rows of a batch come from one source, weights count
        batches, and an epoch has whole batches only.
    columns: those that all sources have in "common"; their "union"; or a list of names. Rows of a source that lacks a
        column have zeros, or None, and False in `<column>_mask`.
    shuffle: for sources that are not shuffled as the loader says, by name: True, False or `penstock.Shuffle(…)`.

    Raises `InvalidInputError` for what cannot be mixed, and `NotFoundError` for an unknown column.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise InvalidInputError('a mixture needs sources by name, such as penstock.mix({"web": web, "code": code})')
    views: dict[str, AnyView] = {}
    for name, view in sources.items():
        if isinstance(view, Mixture):
            raise InvalidInputError(f"source {name!r} is a mixture; mix its sources, with weights multiplied, instead")
        if not isinstance(name, str) or not isinstance(view, AnyView):
            raise InvalidInputError(
                f"a source is a name with a table or a view of one, not {name!r} with {type(view).__name__}"
            )
        if view._follower() is not None:
            raise InvalidInputError(f"source {name!r} follows its branch; a mixture reads one version of each source")
        views[name] = _streamed(view)
    if per_batch not in ("mixed", "single"):
        raise InvalidInputError(f'per_batch is "mixed" or "single", not {per_batch!r}')
    if stop not in ("first", "all") and not (isinstance(stop, Integral) and not isinstance(stop, bool) and stop >= 1):
        raise InvalidInputError(f'stop is "first", "all" or a number of rows, not {stop!r}')
    own = shuffle or {}
    _check_names("shuffle", own, views)
    return Mixture(
        views,
        columns=_column_names(views, columns),
        schedule=_schedule(weights, views),
        stop=stop if isinstance(stop, str) else int(stop),
        whole_batches=per_batch == "single",
        shuffles={name: as_shuffle(choice) for name, choice in own.items()},
    )


class Mixture(Streaming):
    """Rows of several views, in proportion to weights; see `penstock.mix`."""

    def __init__(
        self,
        views: Mapping[str, AnyView],
        *,
        columns: Sequence[str],
        schedule: Sequence[tuple[int, tuple[int, ...]]],
        stop: Literal["first", "all"] | int,
        whole_batches: bool,
        shuffles: Mapping[str, Shuffle | None],
    ) -> None:
        self._views, self._columns, self._schedule = views, tuple(columns), tuple(schedule)
        self._stop, self._whole_batches, self._shuffles = stop, whole_batches, shuffles
        self._everything = self._source()
        self._rows = self._everything.epoch_rows(1)

    def _pinned(self) -> "Mixture":
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources; `batch["_source"]` has indices into it."""
        return tuple(self._views)

    @property
    def schema(self) -> Schema:
        """The columns; `_source` is a label with the names of the sources."""
        return schema_of(self._everything)

    def __len__(self) -> int:
        """Rows of an epoch."""
        return self._rows

    def __getitem__(self, key: int) -> dict[str, Any]:
        """A row of the first epoch by position, as it is read without shuffle; `_source` is the index of its source.

        Raises `IndexError` for a position out of range.
        """
        if not is_position(key):
            raise InvalidInputError(
                f"a mixture has rows by position, not {key!r}: slice and filter the sources before mixing, and use "
                "select for columns"
            )
        index = int(key)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no row {index}: there are {len(self)}")
        source = self._everything
        sources, numbers = source.order.rows(index % len(self), index % len(self) + 1)
        number = int(sources[0])
        view = self._views[self.sources[number]]
        row = view.select(list(source.sources[self.sources[number]].names))[int(numbers[0]) % len(view)]
        return {name: row.get(name) for name in self._columns} | {SOURCE: number}

    def select(self, columns: str | Sequence[str]) -> "Mixture":
        """A mixture of some columns; `_row_id` can be one of them. Raises `NotFoundError` for an unknown column."""
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name not in (*self._columns, ROW_ID, SOURCE):
                raise NotFoundError(f"there is no column {name!r}; the mixture has {', '.join(self._columns)}")
        return Mixture(
            self._views, columns=[name for name in names if name != SOURCE], schedule=self._schedule, stop=self._stop,
            whole_batches=self._whole_batches, shuffles=self._shuffles,
        )  # fmt: skip

    def __repr__(self) -> str:
        total = sum(self._schedule[0][1])
        shares = (
            f"{name} {weight / total:.3g}" for name, weight in zip(self.sources, self._schedule[0][1], strict=True)
        )
        return f"Mixture({len(self):,} rows of {', '.join(shares)}: {', '.join(self._columns)})"

    def _row_source(self) -> MixtureSource:
        for view in self._views.values():
            view._row_source()
        return self._source()

    def _source(self) -> MixtureSource:
        sources: dict[str, Source] = {}
        for name, view in self._views.items():
            known = view.schema
            sources[name] = view.select([each for each in self._columns if each == ROW_ID or each in known])._source()
        return MixtureSource(
            sources, self._columns, shuffles=self._shuffles, schedule=self._schedule, stop=self._stop,
            whole_batches=self._whole_batches,
        )  # fmt: skip


def _streamed(view: AnyView) -> AnyView:
    """A view without quarantined rows, as loaders read it."""
    if not isinstance(view, View):
        return view
    pinned = view._pinned()
    return View(pinned._reader, pinned._columns, without_quarantined(pinned._reader, pinned._rows))


def _check_names(option: str, given: Mapping[str, object], views: Mapping[str, AnyView]) -> None:
    for name in given:
        if name not in views:
            raise InvalidInputError(f"{option} names source {name!r}; the sources are {', '.join(views)}")


def _schedule(
    weights: Weights | Sequence[tuple[int, Weights]] | None, views: Mapping[str, AnyView]
) -> list[tuple[int, tuple[int, ...]]]:
    """Weights as whole numbers, from a row on."""
    if weights is None:
        weights = {name: len(view) for name, view in views.items()}
    if isinstance(weights, Mapping):
        return [(0, _whole(weights, views))]
    starts = [start for start, _ in weights]
    if not starts or starts[0] != 0 or any(after <= before for before, after in pairwise(starts)):
        raise InvalidInputError(f"a schedule of weights has rising rows from 0 on, not {starts}")
    return [(int(start), _whole(each, views)) for start, each in weights]


def _whole(weights: Weights, views: Mapping[str, AnyView]) -> tuple[int, ...]:
    _check_names("weights", weights, views)
    for name, view in views.items():
        weight = weights.get(name)
        if not isinstance(weight, Real) or isinstance(weight, bool) or not isfinite(weight) or weight < 0:
            raise InvalidInputError(f"the weight of source {name!r} is a number from 0 on, not {weight!r}")
        if weight and not len(view):
            raise InvalidInputError(f"source {name!r} has no rows, and so cannot have weight {weight}")
    given = [weights[name] for name in views]
    if not any(given):
        raise InvalidInputError("the weights of a mixture sum to 0: give at least one source a weight, and rows")
    return whole_weights([int(weight) if isinstance(weight, Integral) else float(weight) for weight in given])


def _column_names(views: Mapping[str, AnyView], columns: str | Sequence[str]) -> list[str]:
    """The columns of a mixture, checked."""
    fields = {name: {field.name: field for field in view.schema} for name, view in views.items()}
    every = list(dict.fromkeys(column for known in fields.values() for column in known))
    if columns == "common":
        names = [column for column in every if all(column in known for known in fields.values())]
        if not names:
            raise InvalidInputError(f'the sources {", ".join(views)} have no column in common; pass columns="union"')
    elif columns == "union":
        names = every
    elif isinstance(columns, str):
        raise InvalidInputError(f'columns is "common", "union" or a list of names, not {columns!r}')
    else:
        names = [column for column in columns if column != SOURCE]
    for column in names:
        if column not in every and column != ROW_ID:
            raise NotFoundError(f"there is no column {column!r}; the sources have {', '.join(every)}")
        if column == SOURCE:
            raise InvalidInputError(f"a source has a column {SOURCE!r}, as the mixture has; rename it")
        _check_type(column, {name: known[column] for name, known in fields.items() if column in known})
    return names


def _check_type(column: str, fields: Mapping[str, Field]) -> None:
    kinds = {name: any_shape(value_kind(field.kind)) for name, field in fields.items()}
    if column == CU_SEQLENS:  # as wide as a sequence of the pack has documents; the mixture has the widest
        kinds = {
            name: replace(kind, shape=(None,)) if isinstance(kind, Tensor) else kind for name, kind in kinds.items()
        }
    first = next(iter(kinds), "")
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise InvalidInputError(
                f"column {column!r} is {kinds[first]} in source {first!r} and {kind} in {name!r}; mix views without "
                "it: view.select([…]) chooses columns"
            )
