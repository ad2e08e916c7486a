"""Format columns as batches: numpy arrays, the user's functions, and collation of samples."""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Allocator
from penstock.engine.assembly._collate import pad, split
from penstock.engine.assembly._columns import PAD
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._rows import BadRowsError
from penstock.engine.assembly._values import has_lists
from penstock.errors import InvalidInputError
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor
from penstock.plan import derive_key, random_u64
from penstock.table import Int64Array

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys of a batch's random numbers: they depend on nothing else."""

    seed: int
    epoch: int
    row_ids: Int64Array
    """The ids of the rows; of rows drawn with replacement, other numbers for each draw."""

    def part(self, start: int, count: int) -> "RowKeys":
        """The keys of some consecutive rows."""
        return RowKeys(self.seed, self.epoch, self.row_ids[start : start + count])

    def generator(self, index: int) -> np.random.Generator:
        """A generator for one row, the same wherever and whenever the row is transformed."""
        return np.random.Generator(np.random.Philox(derive_key(self.seed, self.epoch, int(self.row_ids[index]))))

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """`count` random numbers in [0, 1) for each row, as reproducible, for all rows at once."""
        key = derive_key(self.seed, self.epoch, count)
        drawn = random_u64(key, self.row_ids[:, None] * count + np.arange(count))
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, eq=False)
class Jagged:
    """Rows of different lengths, one after the other."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    """The start of each row, and the end of the last one."""

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[Any]]) -> "Jagged":
        """Concatenate rows."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate(rows), offsets)


@dataclass
class BatchFormatter:
    """Turns columns into the batch that the user's loop gets.

    Its batches have numpy arrays; an adapter overrides the public methods for its own array type.
    """

    transform: Callable[..., Any] | None
    batch_transform: Callable[..., Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    ragged: str
    """How values of different shapes share a batch: "pad"; "list"; "refuse" raises; "rows" gives a list if only their
    first dimension varies and pads otherwise; "nested" gives `jagged` then, and else a list."""
    ragged_columns: dict[str, npt.NDArray[Any]]
    """Ragged numeric columns, each with an empty value."""
    tolerant: bool
    in_worker_process: bool = False
    """Whether it runs in a worker process of its own, and may seed global random generators."""
    empty: Allocator = field(default=np.empty, repr=False, compare=False)
    """Memory for stacked values: what is written straight to where the loop reads it need not be copied there."""

    @property
    def needs_keys(self) -> bool:
        """Whether it needs `RowKeys`."""
        given = [function for function in (self.transform, self.batch_transform) if function is not None]
        return bool(given) and (self.in_worker_process or any(map(accepts_generator, given)))

    @property
    def by_rows(self) -> bool:
        """Whether it calls a function for each row, so that batches are built one at a time."""
        return self.transform is not None or self.collate_fn is not None

    @property
    def on_host(self) -> bool:
        """Whether it reads column values, so that they must be in host memory."""
        return self.by_rows or self.batch_transform is not None

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """One batch; raises `BadRowsError` for rows that cannot be transformed."""
        if not self.by_rows:
            batch: Any = self._arrays(columns)
        else:
            columns = dict(columns)
            flags = None if self.transform is None else columns.pop(PAD, None)
            samples = inputs = samples_of(columns, self.array)
            if self.transform is not None:
                samples = self._transform_samples(self.transform, inputs, keys)
            batch = self._collate(samples, inputs) if self.collate_fn is None else self.collate_fn(samples)
            if flags is not None and isinstance(batch, dict):
                batch[PAD] = self.array(np.asarray(flags))
        if self.batch_transform is None:
            return batch
        return self._bind(self.batch_transform, keys)(batch, 0)

    def format_many(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:
        """All batches of a span at once; None if it has to see them one by one."""
        if has_lists(columns):
            return None
        return self.split(self._arrays(columns), batch_rows)

    def for_worker(self) -> "BatchFormatter":
        """The formatter that runs in worker processes, without a framework; `from_worker` converts its batches."""
        return BatchFormatter(
            self.transform, self.batch_transform, self.collate_fn, self.ragged, self.ragged_columns, self.tolerant,
            in_worker_process=True,
        )  # fmt: skip

    def to_transport(self, value: Any) -> Any:
        """A batch with numpy arrays in place of a framework's, for transport to another process."""
        return value

    def from_worker(self, batch: Any) -> Any:
        """The batch of a worker process, as this formatter would have made it."""
        return batch if self.on_host else self._converted(batch)

    def array(self, array: npt.NDArray[Any]) -> Any:
        """An array that the user may write to."""
        return writable(array)

    def jagged(self, rows: Jagged) -> Any:
        """Rows of different lengths."""
        return rows

    def split(self, batch: dict[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Split arrays into batches of the given lengths."""
        return split(batch, lengths)

    def is_array(self, value: Any) -> bool:
        """Whether a value is an array or an array scalar."""
        return isinstance(value, np.ndarray | np.generic)

    def to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Inverse of `array`."""
        return np.asarray(array)

    def stack(self, values: list[Any]) -> Any:
        """Stack the values of all rows, inside dictionaries and tuples too; values that are not numbers stay a list."""
        first = values[0]
        if isinstance(first, dict):
            return {key: self.stack([value[key] for value in values]) for key in first}
        if isinstance(first, tuple):
            parts = [self.stack(list(part)) for part in zip(*values, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
        if all(type(value) is np.ndarray and value.dtype == first.dtype for value in values):
            return np.stack(values, out=self.empty((len(values), *first.shape), first.dtype))
        if all(isinstance(value, np.ndarray | np.generic | bool | int | float | complex) for value in values):
            return np.stack(values)
        return values

    def format_ragged(self, name: str, values: Sequence[Any], empty: npt.NDArray[Any] | None) -> dict[str, Any]:
        """A column of arrays with different shapes, in numpy arrays."""
        if self.ragged == "refuse":
            raise InvalidInputError(
                f"column {name!r} has values of different shapes, and every process would pad them in its own way; "
                "give them one shape with transform=…, or leave the column out with ds.select(…)"
            )
        only_first_varies = empty is not None and 0 not in empty.shape[1:]
        by_rows = self.ragged in ("rows", "nested") and only_first_varies
        if self.ragged == "pad" or (self.ragged == "rows" and not by_rows):
            padded, shapes = pad(values, empty)
            return {name: padded, f"{name}_shape": shapes}
        missing = empty if by_rows else None
        rows: list[Any] = [missing if value is None else value for value in values]
        return {name: Jagged.of(rows) if by_rows and self.ragged == "nested" else rows}

    def seed_global_generators(self, seed: int) -> None:
        """Seed the global random generators of this process."""
        random.seed(seed)
        np.random.seed(seed)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value
        return self.array(np.array(self.to_numpy(value))) if self.is_array(value) else deepcopy(value)

    def _bind(self, function: Callable[..., Any], keys: RowKeys | None) -> Callable[[Any, int], Any]:
        """Bind a user's function to the random generator of a row, or of the first row of a batch."""
        if keys is None:
            return lambda value, _: function(value)
        random = accepts_generator(function)

        def call(value: Any, row: int) -> Any:
            if self.in_worker_process:
                self.seed_global_generators(int(keys.generator(row).integers(1 << 32)))
            return function(value, keys.generator(row)) if random else function(value)

        return call

    def _transform_samples(
        self, transform: Callable[..., Any], inputs: list[Sample], keys: RowKeys | None
    ) -> list[Any]:
        """What the transform makes of samples, one by one: of copies if all may be needed again, as it may modify them.

        Of `inputs` remains what `_collate` compares, so that the rest is freed as soon as the transform drops it.
        """
        call = self._bind(transform, keys)
        done: list[Any] = []
        failures: dict[int, Exception] = {}
        for index, sample in enumerate(inputs):
            sample = {name: self._copied(value) for name, value in sample.items()} if self.tolerant else copy(sample)
            inputs[index] = {name: value for name, value in sample.items() if name in self.ragged_columns}
            try:
                done.append(call(sample, index))
            except Exception as error:  # a user's function may raise anything
                failures[index] = error
                if not self.tolerant:
                    break
        if failures:
            raise BadRowsError(failures)
        return done

    def _collate(self, samples: list[Any], inputs: list[Sample]) -> Any:
        """Collate samples: stack equal shapes; `ragged` decides for other shapes and unchanged ragged columns."""
        if not all(isinstance(sample, dict) for sample in samples):
            return self.stack(samples)
        batch: dict[str, Any] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if not all(value is None or self.is_array(value) for value in values):
                plain = any(value is None or isinstance(value, str | bytes) for value in values)
                batch[name] = values if plain else self.stack(values)
                continue
            same = all(value is sample.get(name) for value, sample in zip(values, inputs, strict=True))
            shapes = {None if value is None else value.shape for value in values}
            if len(shapes) == 1 and None not in shapes and not (same and name in self.ragged_columns):
                batch[name] = self.stack(values)
            else:
                batch.update(
                    self._arrays({name: [None if value is None else self.to_numpy(value) for value in values]})
                )
        return batch

    def _arrays(self, columns: Columns) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for name, values in columns.items():
            empty = self.ragged_columns.get(name)
            if isinstance(values, list) and (empty is not None or any(isinstance(v, np.ndarray) for v in values)):
                batch.update(self.format_ragged(name, values, empty))
            else:
                batch[name] = values
        return self._converted(batch)

    def _converted(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Convert the numpy arrays of a batch."""
        return {
            name: self.jagged(values) if isinstance(values, Jagged) else _convert(values, self.array)
            for name, values in batch.items()
        }


@dataclass
class ConvertedFormatter(BatchFormatter):
    """Formats numpy batches and converts them last, in the main process: workers need neither framework nor device."""

    put: Callable[[Any], Any] = field(kw_only=True)

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        return self.put(super().__call__(columns, keys))

    def format_many(self, columns: Columns, batch_rows: Sequence[int]) -> list[Any] | None:  # noqa: ARG002
        return None  # arrays are converted one by one

    def from_worker(self, batch: Any) -> Any:
        return self.put(super().from_worker(batch))


def ragged_columns(fields: Mapping[str, Field]) -> dict[str, npt.NDArray[Any]]:
    """Ragged numeric columns, each with an empty value."""
    kinds = {name: value_kind(field.kind) for name, field in fields.items()}
    return {
        name: np.zeros([length or 0 for length in kind.shape], kind.element.logical)
        for name, kind in kinds.items()
        if isinstance(kind, Tensor) and kind.ragged
    }


def samples_of(columns: Mapping[str, Any], array: Callable[[npt.NDArray[Any]], Any]) -> list[Sample]:
    """Split columns into samples."""
    values = {name: _convert(column, array) for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _convert(values: Any, array: Callable[[npt.NDArray[Any]], Any]) -> Any:
    """Convert a column that is an array, or a list of arrays."""
    if isinstance(values, np.ndarray):
        return array(values)
    if isinstance(values, list) and any(isinstance(value, np.ndarray) for value in values):
        return [array(value) if isinstance(value, np.ndarray) else value for value in values]
    return values  # no arrays, or on a device already


def accepts_generator(function: Callable[..., Any]) -> bool:
    """Whether a transform has a second required parameter, for a random generator."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is Parameter.empty for p in places) >= 2


def writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself if it is writable and in native byte order, else a copy."""
    if array.flags.writeable and array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))
