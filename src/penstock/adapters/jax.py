"""Batches of JAX arrays, copied to their devices before the loop needs them."""

import json
from collections import defaultdict
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils
from jax.sharding import Sharding as Sharding

from penstock.engine import (
    ConvertedFormatter,
    Loader,
    LoaderOptions,
    MixtureSource,
    Progress,
    RankAgreement,
    Source,
    Transforms,
    explicit_world,
    map_leaves,
    ragged_columns,
)
from penstock.errors import InvalidInputError
from penstock.types import World


def loader(
    source: Source | MixtureSource,
    *,
    options: LoaderOptions,
    transforms: Transforms,
    sharding: Sharding | None,
    distributed: bool | tuple[int, int] | None,
    progress: Progress | None,
) -> Loader:
    """Batches of jax arrays; see `View.jax`."""
    ragged = transforms.ragged_mode(("pad", "list"))
    world, all_processes = World(), False
    if isinstance(distributed, tuple):
        world = explicit_world(distributed)
    elif distributed is not False:
        world, all_processes = _find_world(distributed, sharding)
    if sharding is not None:
        if ragged == "list":
            raise InvalidInputError('with sharding, values of different shapes must be padded: pass collate_fn="pad"')
        _check_divisible(sharding, options, source.epoch_rows(options.batch_size), world)
        if world.num_ranks > 1:
            ragged = "refuse"
    formatter = ConvertedFormatter(
        transforms.transform, transforms.batch_transform, transforms.collate_fn, ragged, ragged_columns(source.fields),
        options.bad_samples.tolerant, put=partial(_put, sharding),
    )  # fmt: skip
    agreement = RankAgreement(options, _gather) if all_processes else None
    return Loader(
        source,
        world=world,
        options=options,
        formatter=formatter,
        agreement=agreement,
        progress=progress,
    )


def _put(sharding: Sharding | None, batch: Any) -> Any:
    """Begin to copy a batch to its devices, without blocking."""
    if isinstance(batch, dict):
        return {name: map_leaves(partial(_put_leaf, sharding, repr(name)), value) for name, value in batch.items()}
    return map_leaves(partial(_put_leaf, sharding, "the batch"), batch)


def _put_leaf(sharding: Sharding | None, name: str, leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray | np.generic) or leaf.dtype.kind in "OSUTMm":
        return leaf
    array = np.asarray(leaf)
    _check_width(name, array)
    if sharding is None or array.ndim == 0:
        return jax.device_put(array)
    try:
        return jax.make_array_from_process_local_data(sharding, array)
    except ValueError as error:
        raise InvalidInputError(
            f"{name} has {len(array)} rows in this process, which cannot be laid out as sharding requires ({error}); "
            "pass drop_last=True if this is a short last batch"
        ) from error


def _check_width(name: str, array: npt.NDArray[Any]) -> None:
    """Refuse integers that would overflow silently when jax narrows 64-bit dtypes."""
    narrowed = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if array.dtype.kind not in "iu" or narrowed == array.dtype or array.size == 0:
        return
    limits, smallest, largest = np.iinfo(narrowed), int(array.min()), int(array.max())
    if smallest < limits.min or largest > limits.max:
        raise InvalidInputError(
            f"{name} contains {smallest if smallest < limits.min else largest}, but jax converts {array.dtype} to "
            f"{narrowed}: call "
            'jax.config.update("jax_enable_x64", True), or leave the column out with ds.select(…)'
        )


def _find_world(distributed: bool | None, sharding: Sharding | None) -> tuple[World, bool]:
    """The rank of this process among those that read different rows, and whether they include all processes."""
    if distributed not in (None, True):
        raise InvalidInputError(f"distributed is True, False or (rank, num_ranks), not {distributed!r}")
    if distributed and not jax.distributed.is_initialized():
        raise InvalidInputError(
            "distributed=True needs several processes: call jax.distributed.initialize() first, or pass "
            "distributed=(rank, num_ranks)"
        )
    count = jax.process_count()
    if sharding is None or count == 1:
        return World(jax.process_index(), count), count > 1
    parts = _parts_by_process(sharding)
    mine = parts.get(jax.process_index())
    if mine is None:
        raise InvalidInputError("sharding has no device of this process; pass one whose mesh includes its devices")
    groups = sorted(set(parts.values()), key=min)
    if len({len(group) for group in groups}) > 1 or sum(map(len, groups)) > len(frozenset().union(*groups)):
        raise InvalidInputError(
            "with this sharding, processes hold different numbers of shards of a batch, or shards that overlap; "
            "shard the first dimension so that two processes hold either the same rows or disjoint rows"
        )
    return World(groups.index(mine), len(groups)), len(parts) == count


def _parts_by_process(sharding: Sharding) -> dict[int, frozenset[int]]:
    """The shards of the first dimension that each process holds, by their start."""
    parts: defaultdict[int, set[int]] = defaultdict(set)
    try:
        layout = sharding.devices_indices_map((len(sharding.device_set),))
    except (AttributeError, IndexError, ValueError) as error:  # not a sharding, or not of one dimension
        raise InvalidInputError(
            "sharding must shard the first dimension and no other, such as "
            f"NamedSharding(mesh, PartitionSpec('data')), and not {sharding!r}"
        ) from error
    device: Any
    for device, index in layout.items():
        parts[device.process_index].add(index[0].start or 0)
    return {process: frozenset(starts) for process, starts in parts.items()}


def _check_divisible(sharding: Sharding, options: LoaderOptions, rows: int, world: World) -> None:
    """Refuse batch sizes that devices cannot share equally, before training starts."""
    shards = len(_parts_by_process(sharding).get(jax.process_index(), (0,)))
    if options.batch_size % shards:
        raise InvalidInputError(
            f"batch_size={options.batch_size} cannot be divided among the {shards} shards here; pass a multiple"
        )
    last_rows = rows % options.batch_size
    if world.num_ranks == 1 and not options.drop_last and last_rows % shards:
        raise InvalidInputError(
            f"the last batch has {last_rows} rows, which cannot be divided among {shards} shards: pass drop_last=True"
        )


def _gather(value: Any) -> list[Any]:
    """All-gather a JSON value."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    longest = int(np.max(multihost_utils.process_allgather(np.array(len(text), np.int32))))
    padded = np.pad(text, (0, longest - len(text)), constant_values=ord(" "))
    return [json.loads(row.tobytes()) for row in np.asarray(multihost_utils.process_allgather(padded))]
