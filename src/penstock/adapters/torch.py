"""Batches of tensors for PyTorch, and rows for its own DataLoader."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import default_collate

from penstock.adapters.torch_rows import RowDataset, own_storage, to_tensor
from penstock.device import (
    RANDOM_VALUES_PER_IMAGE,
    Accelerator,
    DeviceEvent,
    DeviceOptions,
    DeviceTransform,
    ImageTransform,
    as_array,
    as_tensor,
)
from penstock.engine import (
    BatchFormatter,
    Columns,
    DecodeOptions,
    Jagged,
    Loader,
    LoaderOptions,
    MixtureSource,
    Progress,
    RankAgreement,
    RowKeys,
    Source,
    Transforms,
    accepts_generator,
    explicit_world,
    has_lists,
    map_leaves,
    ragged_columns,
)
from penstock.errors import InvalidInputError, PenstockWarning
from penstock.types import World

Distributed = bool | tuple[int, int] | dist.ProcessGroup | DeviceMesh | None


def loader(
    source: Source | MixtureSource,
    *,
    options: LoaderOptions,
    transforms: Transforms,
    distributed: Distributed,
    device: DeviceOptions | None,
    progress: Progress | None,
) -> Loader:
    """Batches of tensors; see `View.pytorch`."""
    if distributed is None and not _is_distributed() and _launcher_world_size() > 1:
        warnings.warn(
            f"every rank will read all rows: the environment has WORLD_SIZE={_launcher_world_size()}, but "
            "torch.distributed is not initialised; create the loader after init_process_group(), or pass "
            "distributed=(rank, num_ranks), or distributed=False if every rank should read all rows",
            PenstockWarning,
            stacklevel=4,
        )
    world, group = _find_world(distributed)
    formatter = TorchFormatter(
        transforms.transform, transforms.batch_transform, transforms.collate_fn,
        transforms.ragged_mode(("nested", "pad", "list")), ragged_columns(source.fields), options.bad_samples.tolerant,
    )  # fmt: skip
    agreement = None if group is None else RankAgreement(options, partial(_gather, group))
    return Loader(
        source, world=world, options=options, formatter=formatter, placement=_placement(device, source.names),
        agreement=agreement, progress=progress,
    )  # fmt: skip


def row_dataset(
    source: Source | MixtureSource,
    *,
    decode: DecodeOptions,
    transform: Callable[..., Any] | None,
) -> RowDataset:
    """Rows of tensors; see `View.pytorch`."""
    if _is_distributed() and dist.get_world_size() > 1:
        warnings.warn(
            "every rank reads the whole table through this dataset: pass a DistributedSampler to DataLoader, or use "
            "ds.pytorch(batch_size=…), which partitions rows among ranks",
            PenstockWarning,
            stacklevel=4,
        )
    return RowDataset(source.row_reader(decode, lease=True), transform)


@dataclass
class TorchFormatter(BatchFormatter):
    """Batches of tensors."""

    def to_transport(self, value: Any) -> Any:
        return map_leaves(_leaf_to_transport, value)

    def for_worker(self) -> BatchFormatter:
        return replace(self, in_worker_process=True) if self.on_host else super().for_worker()

    def from_worker(self, batch: Any) -> Any:
        if not self.on_host:
            return super().from_worker(batch)
        return map_leaves(_leaf_from_transport, batch, leaf_type=_TransportTensor)

    def array(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """An array as a tensor; this method and those below are described in `BatchFormatter`."""
        return to_tensor(array)

    def split(self, batch: dict[str, torch.Tensor], lengths: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        return _split(batch, lengths)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def to_numpy(self, array: torch.Tensor) -> npt.NDArray[Any]:
        return as_array(array)

    def stack(self, values: list[Any]) -> Any:
        first = values[0]
        plain = all(
            type(value) is torch.Tensor and value.dtype == first.dtype and value.shape == first.shape
            and value.device.type == "cpu" and value.layout == torch.strided and not value.requires_grad
            for value in values
        )  # fmt: skip
        if not plain:
            return default_collate(values)
        memory = torch.from_numpy(self.empty((len(values) * first.numel() * first.element_size(),), np.uint8))
        return torch.stack(values, out=memory.view(first.dtype).view(len(values), *first.shape))

    def jagged(self, rows: Jagged) -> torch.Tensor:
        return _nested(rows)

    def seed_global_generators(self, seed: int) -> None:
        super().seed_global_generators(seed)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes milliseconds: it formats the stack


def _tensors(columns: Columns) -> dict[str, Any]:
    """Columns with arrays converted to tensors; other columns are unchanged."""
    return {name: to_tensor(values) if isinstance(values, np.ndarray) else values for name, values in columns.items()}


def _split(batch: dict[str, torch.Tensor], lengths: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    """Split tensors into batches that are independent for autograd, so that each can be modified in place."""
    if len(lengths) == 1:
        return [batch]
    parts = [own_storage(torch.unsafe_split_with_sizes(tensor, list(lengths))) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]


def _nested(rows: Jagged) -> torch.Tensor:
    """Rows of different lengths as one nested tensor."""
    lengths = np.diff(rows.offsets)
    return torch.nested.nested_tensor_from_jagged(
        to_tensor(rows.values), torch.from_numpy(rows.offsets),
        min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max()),
    )  # fmt: skip


class _TransportTensor(NamedTuple):
    """A tensor in transit between processes."""

    array: npt.NDArray[Any]
    requires_grad: bool


def _leaf_to_transport(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
        return leaf
    if leaf.is_nested:
        nested: Any = leaf  # whose methods torch does not declare
        plain = leaf.layout == torch.jagged and not leaf.requires_grad and nested.lengths() is None
        return Jagged(as_array(leaf.values().contiguous()), as_array(nested.offsets())) if plain else leaf
    return _TransportTensor(as_array(leaf.detach().contiguous()), leaf.requires_grad)


def _leaf_from_transport(leaf: Any) -> Any:
    if isinstance(leaf, Jagged):
        return _nested(leaf)
    return as_tensor(leaf.array).requires_grad_(leaf.requires_grad) if isinstance(leaf, _TransportTensor) else leaf


class _Transfer:
    """Tensors in transit to a device."""

    __slots__ = ("ready", "stream", "tensors")

    def __init__(self, tensors: list[torch.Tensor], ready: DeviceEvent) -> None:
        self.tensors, self.ready = tensors, ready
        self.stream: int | None = None
        """The address of the stream that already waits for `ready`."""


class _PlacedBatch(NamedTuple):
    """A batch, and the transfer that it is part of; batches of one span share a transfer."""

    batch: Any
    transfer: _Transfer


class TorchPlacement:
    """Copies batches to a device, and applies the device transform to them."""

    def __init__(self, accelerator: Accelerator, transform: DeviceTransform | None) -> None:
        self.accelerator, self._transform = accelerator, transform
        functions = list(transform.values()) if isinstance(transform, Mapping) else [transform]
        self.needs_keys = any(
            function.random if isinstance(function, ImageTransform) else accepts_generator(function)
            for function in functions
            if function is not None
        )
        self._row_wise = all(function is None or isinstance(function, ImageTransform) for function in functions)
        by_column = transform.items() if isinstance(transform, Mapping) else ()
        self._any_strides = {name for name, function in by_column if isinstance(function, ImageTransform)}
        """Columns that may be non-contiguous, as images decoded on a device are."""

    def place(self, batch: Any, keys: RowKeys | None) -> _PlacedBatch:
        with self.accelerator.on_stream():
            placed = map_leaves(self._to_device, batch)
            if isinstance(placed, dict):
                made_on_gpu = [name for name, value in placed.items() if value is batch[name] and _on_gpu(value)]
                placed |= {name: placed[name].contiguous() for name in made_on_gpu if name not in self._any_strides}
            if isinstance(self._transform, Mapping):
                placed |= {name: _apply(function, placed[name], keys) for name, function in self._transform.items()}
            elif self._transform is not None:
                placed = _apply(self._transform, placed, keys)
            tensors: list[torch.Tensor] = []
            map_leaves(lambda leaf: tensors.append(leaf) if isinstance(leaf, torch.Tensor) else None, placed)
            return _PlacedBatch(placed, _Transfer(tensors, self.accelerator.keep_alive(batch)))

    def place_many(
        self, columns: Columns, keys: RowKeys | None, batch_rows: Sequence[int]
    ) -> list[_PlacedBatch] | None:
        """See `engine.Placement`; the overhead of torch calls does not depend on the number of rows."""
        if not self._row_wise or has_lists(columns):
            return None
        placed, transfer = self.place(_tensors(columns), keys)
        return [_PlacedBatch(batch, transfer) for batch in _split(placed, batch_rows)]

    def make_ready(self, batch: _PlacedBatch) -> Any:
        transfer = batch.transfer
        transfer.stream = self.accelerator.make_ready(transfer.tensors, transfer.ready, transfer.stream)
        return batch.batch

    def _to_device(self, leaf: Any) -> Any:
        return self.accelerator.to_device(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _apply(function: Callable[..., Any], value: Any, keys: RowKeys | None) -> Any:
    if isinstance(function, ImageTransform):
        random_values = keys.uniform(RANDOM_VALUES_PER_IMAGE) if keys is not None and function.random else None
        return function(value, random_values)
    return function(value, keys.generator(0)) if keys is not None and accepts_generator(function) else function(value)


def _placement(options: DeviceOptions | None, names: Sequence[str]) -> TorchPlacement | None:
    if options is None:
        return None
    transform = options.transform
    if isinstance(transform, Mapping):
        unknown = [name for name in transform if name not in names]
        if unknown:
            raise InvalidInputError(
                f"DeviceOptions(transform=…) names column {unknown[0]!r}, which is not selected; the columns are "
                f"{', '.join(names)}"
            )
    try:
        resolved = torch.device(options.device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(
            f"device is a torch device such as 'cuda:1' or 'cpu', not {options.device!r}"
        ) from error
    if resolved.type not in ("cpu", "cuda"):
        raise InvalidInputError(
            f"batches can be placed on 'cpu' or 'cuda', not on {resolved.type!r}; move them yourself"
        )
    if resolved.type == "cpu" and transform is None and options.memory is None:
        return None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidInputError(f"device={str(options.device)!r} needs a GPU, but torch finds none")
        if resolved.index is None:
            resolved = torch.device("cuda", _local_gpu())
        if resolved.index >= torch.cuda.device_count():
            raise InvalidInputError(f"there is no {resolved}: torch finds {torch.cuda.device_count()} GPUs")
    return TorchPlacement(Accelerator(resolved), transform)


def _local_gpu() -> int:
    """The current GPU of this process if it has set one, or else the GPU of its local rank."""
    current = torch.cuda.current_device()
    local_rank = os.environ.get("LOCAL_RANK", "")
    if current == 0 and _is_distributed() and local_rank.isdigit():
        return int(local_rank) if int(local_rank) < torch.cuda.device_count() else current
    return current


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _launcher_world_size() -> int:
    """The number of ranks that a launcher such as torchrun has set in the environment."""
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isdigit() else 1


def _find_world(distributed: Distributed) -> tuple[World, Any]:
    """The rank and number of ranks of this process, and the process group if there are several ranks."""
    initialised = _is_distributed()
    if distributed is False or (distributed is None and not initialised):
        return World(), None
    if isinstance(distributed, tuple):
        return explicit_world(distributed), None
    if not initialised:
        raise InvalidInputError(
            "distributed needs torch.distributed, which is not initialised: call "
            "torch.distributed.init_process_group() first, or pass distributed=(rank, num_ranks)"
        )
    group: Any = distributed
    if distributed is None or distributed is True:
        group = dist.group.WORLD
    elif isinstance(distributed, DeviceMesh):
        if distributed.ndim != 1:
            raise InvalidInputError(
                f"this mesh has {distributed.ndim} dimensions: pass the one along which ranks read different rows, "
                f'such as distributed=mesh["dp"]; its dimensions are {distributed.mesh_dim_names}'
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
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
