"""Batches and rows for PyTorch."""

import random
import warnings
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset, default_collate

from penstock.engine import (
    PAD,
    Agree,
    BadRows,
    Columns,
    DecodeOptions,
    Display,
    Loader,
    RowKeys,
    RowReader,
    StreamOptions,
    map_leaves,
    pad,
)
from penstock.errors import InvalidInputError, PenstockWarning
from penstock.format import linked_kind
from penstock.format.kinds import Tensor, Values
from penstock.plan import State
from penstock.table import ROW_ID, Reader, Rows
from penstock.types import World

Distributed = bool | tuple[int, int] | dist.ProcessGroup | DeviceMesh | None
Ragged = Literal["nested", "pad", "list"]
Sample = dict[str, Any]

_BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (np.uint8, torch.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (np.uint8, torch.float8_e5m2fnuz),
}
"""Types that numpy has from elsewhere: as what they cross over, and what they are then."""


def loader(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    options: StreamOptions,
    distributed: Distributed,
    transform: Callable[..., Any] | None,
    batch_transform: Callable[..., Any] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    ragged: Ragged,
    display: Display | None,
) -> Loader:
    """Batches of tensors; see `View.pytorch`."""
    if ragged not in ("nested", "pad", "list"):
        raise InvalidInputError(f'ragged is "nested", "pad" or "list", not {ragged!r}')
    if display not in (None, "line", "table"):
        raise InvalidInputError(f'show is "line", "table" or None, not {display!r}')
    world, group = _find_world(distributed)
    finish = TorchFinish(
        transform, batch_transform, collate_fn, ragged, _ragged_columns(reader, names), options.bad.tolerant
    )
    agree = None if group is None else _agreement(group, options)
    return Loader(reader, names, rows, world=world, options=options, finish=finish, agree=agree, display=display)


def row_dataset(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    decode: DecodeOptions,
    transform: Callable[..., Any] | None,
) -> "RowDataset":
    """Rows of tensors; see `View.pytorch`."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            "every rank sees the whole table through this dataset: give DataLoader a DistributedSampler, or ask for "
            "batches (ds.pytorch(batch_size=…)), which ranks share by themselves",
            PenstockWarning,
            stacklevel=3,
        )
    return RowDataset(RowReader(reader, names, rows, decode), transform)


class RowDataset(Dataset[Sample]):
    """A table's rows for `torch.utils.data.DataLoader`, which chooses and batches them."""

    def __init__(self, rows: RowReader, transform: Callable[..., Any] | None) -> None:
        self._rows, self._transform = rows, transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch, read together."""
        samples = _samples(self._rows.read(indices))
        if self._transform is None:
            return samples
        if not _takes_generator(self._transform):
            return [self._transform(sample) for sample in samples]
        seed = torch.initial_seed()
        generators = (np.random.default_rng([seed, int(index) % len(self)]) for index in indices)
        return [self._transform(sample, generator) for sample, generator in zip(samples, generators, strict=True)]


@dataclass
class TorchFinish:
    """From columns to what the loop gets: tensors, transforms, and a collation of samples where there are any."""

    transform: Callable[..., Any] | None
    batch_transform: Callable[..., Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    ragged: Ragged
    ragged_columns: dict[str, npt.NDArray[Any]]
    """Columns of numbers whose shape differs from row to row, each with an empty value."""
    tolerant: bool
    alone: bool = False

    @property
    def needs_keys(self) -> bool:
        given = [function for function in (self.transform, self.batch_transform) if function is not None]
        return bool(given) and (self.alone or any(map(_takes_generator, given)))

    @property
    def by_rows(self) -> bool:
        return self.transform is not None or self.collate_fn is not None

    def __call__(self, columns: Columns, keys: RowKeys | None) -> Any:
        """See `engine.Finish`."""
        if self.transform is None and self.collate_fn is None:
            batch: Any = self._tensors(columns)
        else:
            flags = columns.get(PAD) if self.transform is not None else None
            if self.transform is None:
                samples = originals = _samples(columns)
            else:
                originals = self._originals(columns)
                samples = self._transformed(self.transform, list(map(copy, originals)), keys)
            batch = self._together(samples, originals) if self.collate_fn is None else self.collate_fn(samples)
            if flags is not None and isinstance(batch, dict):
                batch[PAD] = _tensor(np.asarray(flags))
        if self.batch_transform is None:
            return batch
        return self._caller(self.batch_transform, keys)(batch, 0)

    def lower(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return map_leaves(_to_array, value)

    def lift(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return map_leaves(_from_array, value, whole=_Tensor)

    def _originals(self, columns: Columns) -> list[Any]:
        """What the transform gets; it may write there, so rows that may be asked for once more are copies."""
        values = {name: column for name, column in columns.items() if name != PAD}
        if self.tolerant and not self.alone:
            values = {name: _copied(column) for name, column in values.items()}
        return _samples(values)

    def _caller(self, function: Callable[..., Any], keys: RowKeys | None) -> Callable[[Any, int], Any]:
        """Calls a user's function for a row, or for a batch that begins with it."""
        if keys is None:
            return lambda value, _: function(value)
        random = _takes_generator(function)

        def call(value: Any, row: int) -> Any:
            if self.alone:
                _seed_all(keys, row)
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
            return default_collate(samples)
        batch: dict[str, Any] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if not all(value is None or isinstance(value, torch.Tensor) for value in values):
                plain = any(value is None or isinstance(value, str | bytes) for value in values)
                batch[name] = values if plain else default_collate(values)
                continue
            same = all(value is sample.get(name) for value, sample in zip(values, originals, strict=True))
            shapes = {None if value is None else value.shape for value in values}
            if len(shapes) == 1 and None not in shapes and not (same and name in self.ragged_columns):
                batch[name] = default_collate(values)
            else:
                batch.update(self._tensors({name: [None if value is None else _numpy(value) for value in values]}))
        return batch

    def _tensors(self, columns: Columns) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for name, values in columns.items():
            if isinstance(values, np.ndarray):
                batch[name] = _tensor(values)
                continue
            empty = self.ragged_columns.get(name)
            if empty is None and not any(isinstance(value, np.ndarray) for value in values):
                batch[name] = values
            elif self.ragged == "pad":
                padded, shapes = pad(values, empty)
                batch[name], batch[f"{name}_shape"] = _tensor(padded), torch.from_numpy(shapes)
            elif self.ragged == "nested" and empty is not None and 0 not in empty.shape[1:]:
                batch[name] = _nested(values, empty)
            else:
                batch[name] = [None if value is None else _tensor(value) for value in values]
        return batch


def _samples(columns: Columns) -> list[Sample]:
    """Columns as rows of tensors."""
    tensors = {
        name: _tensor(values) if isinstance(values, np.ndarray) else [_maybe_tensor(value) for value in values]
        for name, values in columns.items()
    }
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]


def _copied(values: Values) -> Values:
    if isinstance(values, np.ndarray):
        return values.copy()
    return [deepcopy(value) for value in values]


def _maybe_tensor(value: Any) -> Any:
    return _tensor(value) if isinstance(value, np.ndarray) else value


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The same memory as a tensor, where that may be written."""
    if array.dtype in _BITS:
        bits, dtype = _BITS[array.dtype]
        return _tensor(array.view(bits)).view(dtype)
    if array.dtype.kind in "Mm":
        return _tensor(array.view(np.int64))
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Undo `_tensor`."""
    for dtype, (bits, its) in _BITS.items():
        if tensor.dtype == its:
            return tensor.view(getattr(torch, np.dtype(bits).name)).numpy().view(dtype)
    return tensor.numpy()


def _nested(values: Sequence[npt.NDArray[Any] | None], empty: npt.NDArray[Any]) -> torch.Tensor:
    """Rows of different lengths as one tensor; a missing one is empty."""
    rows = [empty if value is None else value for value in values]
    lengths = [len(row) for row in rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return torch.nested.nested_tensor_from_jagged(
        _tensor(np.concatenate(rows)),
        torch.from_numpy(offsets),
        min_seqlen=min(lengths),
        max_seqlen=max(lengths),
    )


def _ragged_columns(reader: Reader, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    schema = reader.snapshot.schema
    kinds = {name: linked_kind(schema[name].kind) for name in names if name != ROW_ID}
    return {
        name: np.zeros([length or 0 for length in kind.shape], kind.element.logical)
        for name, kind in kinds.items()
        if isinstance(kind, Tensor) and kind.ragged
    }


class _Tensor(NamedTuple):
    """A tensor on its way between processes."""

    array: npt.NDArray[Any]
    dtype: torch.dtype


def _to_array(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.device.type != "cpu":
        return leaf
    plain = leaf.detach().contiguous()
    for bits, dtype in _BITS.values():
        if leaf.dtype == dtype:
            plain = plain.view(getattr(torch, np.dtype(bits).name))
    return _Tensor(plain.numpy(), leaf.dtype)


def _from_array(value: Any) -> Any:
    return torch.from_numpy(value.array).view(value.dtype) if isinstance(value, _Tensor) else value


def _takes_generator(function: Callable[..., Any]) -> bool:
    """Whether a transform wants random numbers that depend on nothing but the seed, the epoch and the row."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is Parameter.empty for p in places) >= 2


def _seed_all(keys: RowKeys, index: int) -> None:
    seed = int(keys.generator(index).integers(1 << 32))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _find_world(distributed: Distributed) -> tuple[World, Any]:
    """This process's place among the ranks, and the group to talk to them."""
    running = dist.is_available() and dist.is_initialized()
    if distributed is False or (distributed is None and not running):
        return World(), None
    if isinstance(distributed, tuple):
        try:
            return World(*distributed), None
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"distributed=(rank, num_ranks) got {distributed}: {error}") from error
    if not running:
        raise InvalidInputError(
            "distributed asks for torch.distributed, which is not initialised: call "
            "torch.distributed.init_process_group() first, or pass distributed=(rank, num_ranks)"
        )
    group: Any = distributed
    if distributed is None or distributed is True:
        group = dist.group.WORLD
    elif isinstance(distributed, DeviceMesh):
        if distributed.ndim != 1:
            raise InvalidInputError(
                f"this mesh has {distributed.ndim} dimensions: pass the one whose ranks read different rows, "
                f'such as distributed=mesh["dp"]; it has {distributed.mesh_dim_names}'
            )
        group = distributed.get_group()
    elif not isinstance(distributed, dist.ProcessGroup):
        raise InvalidInputError(
            "distributed is True, False, a process group, one dimension of a DeviceMesh or (rank, num_ranks), "
            f"not {type(distributed).__name__}"
        )
    world = World(dist.get_rank(group), dist.get_world_size(group))
    return world, group if world.num_ranks > 1 else None


def _agreement(group: Any, options: StreamOptions) -> Agree:
    """All ranks must read the same order, or they would read rows twice, or wait for each other for ever."""

    def agree(state: State) -> None:
        point = {
            "the epoch": state.epoch, "the rows read before": state.consumed,
            "batch_size": options.batch_size, "drop_last": options.drop_last,
        }  # fmt: skip
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, (state.order, point), group=group)
        first, start = found[0]
        for rank, (its, there) in enumerate(found):
            others = (
                f"{name}: {there[name]} there, {start[name]} here" for name in start if there[name] != start[name]
            )
            difference = first.difference(its) or next(others, None)
            if difference is not None:
                raise InvalidInputError(
                    f"ranks 0 and {rank} would not read the same epoch, they differ in {difference} (as seen from "
                    f"rank 0; versions {first.version} and {its.version}); "
                    "open the same version with the same options on every rank"
                )

    return agree
