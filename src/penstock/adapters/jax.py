"""Batches for JAX, put on devices ahead of the loop."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils
from jax.sharding import Sharding as Sharding

from penstock.engine import (
    Display,
    LiftedFinish,
    Loader,
    StreamOptions,
    agreement,
    given_world,
    map_leaves,
    ragged_columns,
)
from penstock.errors import InvalidInputError
from penstock.table import Reader, Rows
from penstock.types import World


def loader(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    options: StreamOptions,
    sharding: Sharding | None,
    distributed: bool | tuple[int, int] | None,
    transform: Callable[..., Any] | None,
    batch_transform: Callable[..., Any] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    ragged: str,
    display: Display | None,
) -> Loader:
    """Batches of jax arrays; see `View.jax`."""
    if ragged not in ("pad", "list"):
        raise InvalidInputError(f'ragged is "pad" or "list", not {ragged!r}')
    world, together = World(), False
    if isinstance(distributed, tuple):
        world = given_world(distributed)
    elif distributed is not False:
        world, together = _find_world(distributed, sharding)
    if sharding is not None:
        if ragged == "list":
            raise InvalidInputError('with sharding, values of different shapes must be padded: ragged="pad"')
        _check_shares(sharding, options, len(rows), world)
        if world.num_ranks > 1:
            ragged = "refuse"
    finish = LiftedFinish(
        transform, batch_transform, collate_fn, ragged, ragged_columns(reader, names), options.bad.tolerant,
        put=partial(_put, sharding),
    )  # fmt: skip
    agree = agreement(options, _gather) if together else None
    return Loader(reader, names, rows, world=world, options=options, finish=finish, agree=agree, display=display)


def _put(sharding: Sharding | None, batch: Any) -> Any:
    """Begin to copy a batch to its devices; this waits for nothing."""
    if isinstance(batch, dict):
        return {name: map_leaves(partial(_put_leaf, sharding, repr(name)), value) for name, value in batch.items()}
    return map_leaves(partial(_put_leaf, sharding, "a batch"), batch)


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
            f"{name} has {len(array)} rows here, which cannot be laid out as sharding says ({error}); "
            "pass drop_last=True if this is a short last batch"
        ) from error


def _check_width(name: str, array: npt.NDArray[Any]) -> None:
    """Numbers that do not fit would silently become others."""
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if array.dtype.kind not in "iu" or kept == array.dtype or array.size == 0:
        return
    room, least, most = np.iinfo(kept), int(array.min()), int(array.max())
    if least < room.min or most > room.max:
        raise InvalidInputError(
            f"{name} holds {least if least < room.min else most}, and jax makes {kept} of {array.dtype}: call "
            'jax.config.update("jax_enable_x64", True), or leave the column out with columns=…'
        )


def _find_world(distributed: bool | None, sharding: Sharding | None) -> tuple[World, bool]:
    """This process's place among those that read different rows, and whether all processes must agree."""
    if distributed not in (None, True):
        raise InvalidInputError(f"distributed is True, False or (rank, num_ranks), not {distributed!r}")
    if distributed and not jax.distributed.is_initialized():
        raise InvalidInputError(
            "distributed=True asks for several processes: call jax.distributed.initialize() first, or pass "
            "distributed=(rank, num_ranks)"
        )
    count = jax.process_count()
    if sharding is None or count == 1:
        return World(jax.process_index(), count), count > 1
    parts = _parts(sharding)
    mine = parts.get(jax.process_index())
    if mine is None:
        raise InvalidInputError("sharding names no device of this process")
    shares = sorted(set(parts.values()), key=min)
    if len({len(share) for share in shares}) > 1 or sum(map(len, shares)) > len(frozenset().union(*shares)):
        raise InvalidInputError(
            "with this sharding, processes hold different numbers of parts of a batch, or parts that overlap; "
            "lay the first dimension out so that each process holds all of its rows or shares all of them"
        )
    return World(shares.index(mine), len(shares)), len(parts) == count


def _parts(sharding: Sharding) -> dict[int, frozenset[int]]:
    """Which parts of the first dimension each process holds."""
    parts: defaultdict[int, set[int]] = defaultdict(set)
    try:
        layout = sharding.devices_indices_map((len(sharding.device_set),))
    except (AttributeError, IndexError, ValueError) as error:  # not a sharding, or not of one dimension
        raise InvalidInputError(
            "sharding lays out the first dimension of every column and no other, such as "
            f"NamedSharding(mesh, PartitionSpec('data')), and not {sharding!r}"
        ) from error
    device: Any
    for device, index in layout.items():
        parts[device.process_index].add(index[0].start or 0)
    return {process: frozenset(starts) for process, starts in parts.items()}


def _check_shares(sharding: Sharding, options: StreamOptions, rows: int, world: World) -> None:
    """Refuse a batch that devices cannot share equally before the training meets it."""
    shares = len(_parts(sharding).get(jax.process_index(), (0,)))
    if options.batch_size % shares:
        raise InvalidInputError(
            f"batch_size={options.batch_size} cannot be laid out over the {shares} parts that sharding makes of it here"
        )
    last = rows % options.batch_size
    if world.num_ranks == 1 and not options.drop_last and last % shares:
        raise InvalidInputError(
            f"the last batch has {last} rows, which the {shares} parts of sharding cannot share: pass drop_last=True"
        )


def _gather(value: Any) -> list[Any]:
    """The JSON values of all processes."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    longest = int(np.max(multihost_utils.process_allgather(np.array(len(text), np.int32))))
    padded = np.pad(text, (0, longest - len(text)), constant_values=ord(" "))
    return [json.loads(row.tobytes()) for row in np.asarray(multihost_utils.process_allgather(padded))]
