"""From columns to what the loop gets: numpy arrays, the user's functions, and samples put together again."""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine._collate import pad, split
from penstock.engine._decode import Columns
from penstock.engine._work import PAD, BadRows, RowKeys
from penstock.errors import InvalidInputError
from penstock.format import linked_kind
from penstock.format.kinds import Tensor, Values
from penstock.table import ROW_ID, Reader

Sample = dict[str, Any]


@dataclass
class NumpyFinish:
    """Batches of numpy arrays; the public methods are what a framework with arrays of its own has to say."""

    transform: Callable[..., Any] | None
    batch_transform: Callable[..., Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    ragged: str
    """How values of different shapes share a batch: "pad", as a "list", not at all ("refuse"), or "rows": as a list if
    only their first lengths differ, or else padded. An adapter may know others."""
    ragged_columns: dict[str, npt.NDArray[Any]]
    """Columns of numbers whose shape differs from row to row, each with an empty value."""
    tolerant: bool
    alone: bool = False

    @property
    def needs_keys(self) -> bool:
        given = [function for function in (self.transform, self.batch_transform) if function is not None]
        return bool(given) and (self.alone or any(map(takes_generator, given)))

    @property
    def by_rows(self) -> bool:
        return self.transform is not None or self.collate_fn is not None

    @property
    def on_host(self) -> bool:
        return self.by_rows or self.batch_transform is not None

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """See `engine.Finish`."""
        if self.transform is None and self.collate_fn is None:
            batch: Any = self._arrays(columns)
        else:
            flags = columns.get(PAD) if self.transform is not None else None
            if self.transform is None:
                samples = originals = samples_of(columns, self.array)
            else:
                originals = self._originals(columns)
                samples = self._transformed(self.transform, list(map(copy, originals)), keys)
            batch = self._together(samples, originals) if self.collate_fn is None else self.collate_fn(samples)
            if flags is not None and isinstance(batch, dict):
                batch[PAD] = self.array(np.asarray(flags))
        if self.batch_transform is None:
            return batch
        return self._caller(self.batch_transform, keys)(batch, 0)

    def all_of(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:
        """See `engine.Finish`."""
        if any(isinstance(values, list) for values in columns.values()):
            return None
        return self.split(self._arrays(columns), batch_rows)

    def lower(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return value

    def lift(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return value

    def array(self, array: npt.NDArray[Any]) -> Any:
        """An array that the user may write to."""
        return writable(array)

    def split(self, batch: dict[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Such arrays of many rows as batches of so many."""
        return split(batch, lengths)

    def is_array(self, value: Any) -> bool:
        """Whether something is an array, or one number of an array."""
        return isinstance(value, np.ndarray | np.generic)

    def plain(self, array: Any) -> npt.NDArray[Any]:
        """Undo `array`."""
        return np.asarray(array)

    def stack(self, values: list[Any]) -> Any:
        """One value for all rows, of one for each; what has no arrays stays a list."""
        return stacked(values)

    def uneven(self, name: str, values: Sequence[Any], empty: npt.NDArray[Any] | None) -> dict[str, Any]:
        """A column of arrays that need not have one shape."""
        if self.ragged == "refuse":
            raise InvalidInputError(
                f"column {name!r} has values of different shapes, and every process would pad them in its own way; "
                "give them one shape with transform=…, or leave the column out with columns=…"
            )
        by_rows = self.ragged == "rows" and empty is not None and only_first_differs(empty)
        if self.ragged == "pad" or (self.ragged == "rows" and not by_rows):
            padded, shapes = pad(values, empty)
            return {name: self.array(padded), f"{name}_shape": self.array(shapes)}
        missing = empty if by_rows else None
        return {name: [missing if value is None else self.array(value) for value in values]}

    def seed_all(self, seed: int) -> None:
        """Seed the generators that this process has for everybody."""
        random.seed(seed)
        np.random.seed(seed)

    def _originals(self, columns: Columns) -> list[Sample]:
        """What the transform gets; it may write there, so rows that may be asked for once more are copies."""
        values = {name: column for name, column in columns.items() if name != PAD}
        if self.tolerant and not self.alone:
            values = {name: _copied(column) for name, column in values.items()}
        return samples_of(values, self.array)

    def _caller(self, function: Callable[..., Any], keys: RowKeys | None) -> Callable[[Any, int], Any]:
        """Calls a user's function for a row, or for a batch that begins with it."""
        if keys is None:
            return lambda value, _: function(value)
        random = takes_generator(function)

        def call(value: Any, row: int) -> Any:
            if self.alone:
                self.seed_all(int(keys.generator(row).integers(1 << 32)))
            return function(value, keys.generator(row)) if random else function(value)

        return call

    def _transformed(self, transform: Callable[..., Any], samples: list[Any], keys: RowKeys | None) -> list[Any]:
        call = self._caller(transform, keys)
        done: list[Any] = []
        failures: dict[int, Exception] = {}
        for index, sample in enumerate(samples):
            try:
                done.append(call(sample, index))
            except Exception as error:  # a user's function may raise anything
                failures[index] = error
                if not self.tolerant:
                    break
        if failures:
            raise BadRows(failures)
        return done

    def _together(self, samples: list[Any], originals: list[Sample]) -> Any:
        """Samples stacked; what cannot be, because shapes differ, or is a ragged column as it was, as `ragged` says."""
        if not all(isinstance(sample, dict) for sample in samples):
            return self.stack(samples)
        batch: dict[str, Any] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if not all(value is None or self.is_array(value) for value in values):
                plain = any(value is None or isinstance(value, str | bytes) for value in values)
                batch[name] = values if plain else self.stack(values)
                continue
            same = all(value is sample.get(name) for value, sample in zip(values, originals, strict=True))
            shapes = {None if value is None else value.shape for value in values}
            if len(shapes) == 1 and None not in shapes and not (same and name in self.ragged_columns):
                batch[name] = self.stack(values)
            else:
                batch.update(self._arrays({name: [None if value is None else self.plain(value) for value in values]}))
        return batch

    def _arrays(self, columns: Columns) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for name, values in columns.items():
            if not isinstance(values, list):
                batch[name] = self.array(values) if isinstance(values, np.ndarray) else values  # or on a device
                continue
            empty = self.ragged_columns.get(name)
            if empty is None and not any(isinstance(value, np.ndarray) for value in values):
                batch[name] = values
            else:
                batch.update(self.uneven(name, values, empty))
        return batch


@dataclass
class LiftedFinish(NumpyFinish):
    """Numpy batches that become a framework's in the end, in this process: others need neither it nor its devices."""

    put: Callable[[Any], Any] = field(kw_only=True)

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """See `engine.Finish`."""
        batch = super().__call__(columns, keys)
        return batch if self.alone else self.put(batch)

    def all_of(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:  # noqa: ARG002
        """See `engine.Finish`; arrays are put somewhere one by one."""
        return None

    def lift(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return self.put(value)

    def __copy__(self) -> "LiftedFinish":
        return replace(self)

    def __reduce__(self) -> tuple[type[NumpyFinish], tuple[Any, ...]]:
        return NumpyFinish, tuple(getattr(self, known.name) for known in fields(NumpyFinish))


def only_first_differs(empty: npt.NDArray[Any]) -> bool:
    """Whether the values of a ragged column, of which this is an empty one, differ in their first length alone."""
    return 0 not in empty.shape[1:]


def ragged_columns(reader: Reader, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Columns of numbers whose shape differs from row to row, each with an empty value."""
    schema = reader.snapshot.schema
    kinds = {name: linked_kind(schema[name].kind) for name in names if name != ROW_ID}
    return {
        name: np.zeros([length or 0 for length in kind.shape], kind.element.logical)
        for name, kind in kinds.items()
        if isinstance(kind, Tensor) and kind.ragged
    }


def samples_of(columns: Mapping[str, Any], array: Callable[[npt.NDArray[Any]], Any]) -> list[Sample]:
    """Columns as rows of arrays."""
    values = {
        name: array(column)
        if isinstance(column, np.ndarray)
        else [array(value) if isinstance(value, np.ndarray) else value for value in column]
        for name, column in columns.items()
    }
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def stacked(values: list[Any]) -> Any:
    """One value for all rows, of one for each: inside dictionaries and tuples too; what is no number stays a list."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        parts = [stacked(list(part)) for part in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if all(isinstance(value, np.ndarray | np.generic | bool | int | float | complex) for value in values):
        return np.stack(values)
    return values


def takes_generator(function: Callable[..., Any]) -> bool:
    """Whether a transform wants random numbers that depend on nothing but the seed, the epoch and the row."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is Parameter.empty for p in places) >= 2


def writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, where it may be written and frameworks can read it; else a copy."""
    if array.flags.writeable and array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def _copied(values: Values) -> Values:
    if isinstance(values, np.ndarray):
        return values.copy()
    return [deepcopy(value) for value in values]
