"""Batches and rows for PyTorch."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset, default_collate, get_worker_info

from penstock.device import RANDOM_NUMBERS, Accelerator, Mark, Pixels, array_of, tensor_of
from penstock.device.sent_rows import FirstRow
from penstock.engine import (
    Columns,
    DecodeOptions,
    Display,
    Loader,
    NumpyFinish,
    RowKeys,
    RowReader,
    StreamOptions,
    agreement,
    given_world,
    map_leaves,
    only_first_differs,
    ragged_columns,
    samples_of,
    takes_generator,
    writable,
)
from penstock.errors import InvalidInputError, PenstockWarning
from penstock.table import Reader, Rows
from penstock.types import World

Distributed = bool | tuple[int, int] | dist.ProcessGroup | DeviceMesh | None
Ragged = Literal["nested", "pad", "list"]
Device = str | torch.device | None
DeviceTransform = Callable[..., Any] | Mapping[str, Callable[..., Any]]


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
    device: Device,
    device_transform: DeviceTransform | None,
    display: Display | None,
) -> Loader:
    """Batches of tensors; see `View.pytorch`."""
    if ragged not in ("nested", "pad", "list"):
        raise InvalidInputError(f'ragged is "nested", "pad" or "list", not {ragged!r}')
    if distributed is None and not _running() and _told_ranks() > 1:
        warnings.warn(
            f"every rank will read all rows: the environment says WORLD_SIZE={_told_ranks()}, and torch.distributed is "
            "not initialised; make the loader after init_process_group(), or pass distributed=(rank, num_ranks), or "
            "distributed=False if that is meant",
            PenstockWarning,
            stacklevel=3,
        )
    world, group = _find_world(distributed)
    finish = TorchFinish(
        transform, batch_transform, collate_fn, ragged, ragged_columns(reader, names), options.bad.tolerant
    )
    agree = None if group is None else agreement(options, partial(_gather, group))
    return Loader(
        reader, names, rows,
        world=world, options=options, finish=finish, placement=_placement(device, device_transform, names, options),
        agree=agree, display=display,
    )  # fmt: skip


def row_dataset(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    decode: DecodeOptions,
    transform: Callable[..., Any] | None,
) -> "RowDataset":
    """Rows of tensors; see `View.pytorch`."""
    if _running() and dist.get_world_size() > 1:
        warnings.warn(
            "every rank sees the whole table through this dataset: give DataLoader a DistributedSampler, or ask for "
            "batches (ds.pytorch(batch_size=…)), which ranks share by themselves",
            PenstockWarning,
            stacklevel=3,
        )
    return RowDataset(RowReader(reader, names, rows, decode), transform)


class RowDataset(Dataset[dict[str, Any]]):
    """A table's rows."""

    def __init__(self, rows: RowReader, transform: Callable[..., Any] | None) -> None:
        self._rows, self._transform = rows, transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._samples([index], sent=False)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch, read together."""
        return self._samples(indices, sent=self._transform is None and get_worker_info() is not None)

    def _samples(self, indices: Sequence[int], *, sent: bool) -> list[Any]:
        columns = _tensors(self._rows.read(indices))
        samples = samples_of(columns, _tensor)
        if sent and samples:
            whole = {name: values for name, values in columns.items() if isinstance(values, torch.Tensor)}
            samples[0] |= {name: FirstRow.of(values, self._rows.outbox) for name, values in whole.items()}
        if self._transform is None:
            return samples
        if not takes_generator(self._transform):
            return [self._transform(sample) for sample in samples]
        seed = torch.initial_seed()
        generators = (np.random.default_rng([seed, int(index) % len(self)]) for index in indices)
        return [self._transform(sample, generator) for sample, generator in zip(samples, generators, strict=True)]


@dataclass
class TorchFinish(NumpyFinish):
    """Batches of tensors."""

    def lower(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return map_leaves(_to_array, value)

    def lift(self, value: Any) -> Any:
        """See `engine.Finish`."""
        return map_leaves(_from_array, value, whole=_Tensor)

    def array(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """See `NumpyFinish`; so for the others."""
        return _tensor(array)

    def split(self, batch: dict[str, torch.Tensor], lengths: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        return _split(batch, lengths)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def plain(self, array: torch.Tensor) -> npt.NDArray[Any]:
        return array_of(array)

    def stack(self, values: list[Any]) -> Any:
        return default_collate(values)

    def uneven(self, name: str, values: Sequence[Any], empty: npt.NDArray[Any] | None) -> dict[str, Any]:
        if self.ragged == "nested" and empty is not None and only_first_differs(empty):
            return {name: _nested(values, empty)}
        return super().uneven(name, values, empty)

    def seed_all(self, seed: int) -> None:
        super().seed_all(seed)
        torch.manual_seed(seed)


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The same memory as a tensor, where that may be written."""
    return tensor_of(writable(array))


def _tensors(columns: Columns) -> dict[str, Any]:
    """Columns that are arrays as tensors, and the others as they are."""
    return {name: _tensor(values) if isinstance(values, np.ndarray) else values for name, values in columns.items()}


def _split(batch: dict[str, torch.Tensor], lengths: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    """Tensors of many rows as batches that know nothing of each other, so that any of them may be written."""
    if len(lengths) == 1:
        return [batch]
    parts = [torch.unsafe_split_with_sizes(tensor, list(lengths)) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]


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


class _Tensor(NamedTuple):
    """A tensor on its way between processes."""

    array: npt.NDArray[Any]


def _to_array(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.device.type != "cpu":
        return leaf
    return _Tensor(array_of(leaf.detach().contiguous()))


def _from_array(value: Any) -> Any:
    return tensor_of(value.array) if isinstance(value, _Tensor) else value


class _Arrival:
    """Tensors on their way to a device, the point at which they are there, and the address of a stream that waits."""

    __slots__ = ("stream", "tensors", "there")

    def __init__(self, tensors: list[torch.Tensor], there: Mark) -> None:
        self.tensors, self.there = tensors, there
        self.stream: int | None = None


class _Placed(NamedTuple):
    """A batch, and what it is waiting for, maybe with others."""

    batch: Any
    arrival: _Arrival


class TorchPlacement:
    """Moves batches to a device, and lets the user's function have them there."""

    def __init__(self, accelerator: Accelerator, transform: DeviceTransform | None) -> None:
        self.accelerator, self._transform = accelerator, transform
        functions = list(transform.values()) if isinstance(transform, Mapping) else [transform]
        self.needs_keys = any(
            function.random if isinstance(function, Pixels) else takes_generator(function)
            for function in functions
            if function is not None
        )
        self._by_row = all(function is None or isinstance(function, Pixels) for function in functions)
        named = transform.items() if isinstance(transform, Mapping) else ()
        self._for_pixels = {name for name, function in named if isinstance(function, Pixels)}
        """Columns that may lie in memory in any way; pictures that a device decodes do not as their shape says."""

    def place(self, batch: Any, keys: RowKeys | None) -> _Placed:
        """See `engine.Placement`."""
        with self.accelerator.working():
            moved = map_leaves(self._moved, batch)
            if isinstance(moved, dict):
                made_there = [name for name, value in moved.items() if value is batch[name] and _on_gpu(value)]
                moved |= {name: moved[name].contiguous() for name in made_there if name not in self._for_pixels}
            if isinstance(self._transform, Mapping):
                moved |= {name: _applied(function, moved[name], keys) for name, function in self._transform.items()}
            elif self._transform is not None:
                moved = _applied(self._transform, moved, keys)
            tensors: list[torch.Tensor] = []
            map_leaves(lambda leaf: tensors.append(leaf) if isinstance(leaf, torch.Tensor) else None, moved)
            return _Placed(moved, _Arrival(tensors, self.accelerator.hold(batch)))

    def place_all(self, columns: Columns, keys: RowKeys | None, batch_rows: Sequence[int]) -> list[_Placed] | None:
        """See `engine.Placement`; a call of torch costs as much for many rows as for few."""
        if not self._by_row or any(isinstance(values, list) for values in columns.values()):
            return None
        moved, arrival = self.place(_tensors(columns), keys)
        return [_Placed(batch, arrival) for batch in _split(moved, batch_rows)]

    def hand_over(self, batch: _Placed) -> Any:
        """See `engine.Placement`."""
        arrival = batch.arrival
        arrival.stream = self.accelerator.hand_over(arrival.tensors, arrival.there, arrival.stream)
        return batch.batch

    def _moved(self, leaf: Any) -> Any:
        return self.accelerator.moved(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _applied(function: Callable[..., Any], value: Any, keys: RowKeys | None) -> Any:
    if isinstance(function, Pixels):
        return function(value, keys.numbers(RANDOM_NUMBERS) if keys is not None and function.random else None)
    return function(value, keys.generator(0)) if keys is not None and takes_generator(function) else function(value)


def _placement(
    device: Device,
    transform: DeviceTransform | None,
    names: Sequence[str],
    options: StreamOptions,
) -> TorchPlacement | None:
    if isinstance(transform, Mapping):
        unknown = [name for name in transform if name not in names]
        if unknown:
            raise InvalidInputError(f"device_transform names {unknown[0]!r}, and the columns are {', '.join(names)}")
    if device is None and transform is None and options.device_memory is None:
        return None
    try:
        chosen = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(f"device is something like 'cuda', 'cuda:1' or 'cpu', not {device!r}") from error
    if chosen.type not in ("cpu", "cuda"):
        raise InvalidInputError(f"batches can be put on 'cpu' or 'cuda', not on {chosen.type!r}; move them yourself")
    if chosen.type == "cpu" and transform is None and options.device_memory is None:
        return None
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidInputError(f"device={str(device)!r} asks for a GPU, and torch finds none here")
        if chosen.index is None:
            chosen = torch.device("cuda", _local_gpu())
        if chosen.index >= torch.cuda.device_count():
            raise InvalidInputError(f"there is no {chosen}: torch finds {torch.cuda.device_count()} GPUs here")
    return TorchPlacement(Accelerator(chosen), transform)


def _local_gpu() -> int:
    """The GPU of this process: the one it has chosen, or else that of its rank on this machine."""
    current = torch.cuda.current_device()
    local = os.environ.get("LOCAL_RANK", "")
    if current == 0 and _running() and local.isdigit():
        return int(local) if int(local) < torch.cuda.device_count() else current
    return current


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _told_ranks() -> int:
    """How many ranks a launcher has told this process of."""
    told = os.environ.get("WORLD_SIZE", "")
    return int(told) if told.isdigit() else 1


def _find_world(distributed: Distributed) -> tuple[World, Any]:
    """This process's place among the ranks, and the group to talk to them."""
    running = _running()
    if distributed is False or (distributed is None and not running):
        return World(), None
    if isinstance(distributed, tuple):
        return given_world(distributed), None
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


def _gather(group: Any, value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found
