"""Rows of a batch that a process of torch's DataLoader sends. Imported when asked for, as torch is.

What torch does with the samples of a batch costs more than to read them: it copies them to new shared memory, which
the system clears and both processes map page by page. Here a worker's rows already lie side by side in memory that is
used again. The first of them knows that; where the others still follow it, `default_collate` gives that memory as it
is, and it crosses as a few words. Whatever else is done with samples finds tensors as any others.
"""

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from penstock.device._outbox import MIN_BYTES, Outbox, Parcel, opened
from penstock.device._tensors import array_of, tensor_of


class _Tagged(torch.Tensor):
    """A tensor that knows something more; what is made of it does not."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self.as_subclass(torch.Tensor),)


class _Batch(_Tagged):
    """All rows of a batch, and where their memory may be from."""

    outbox: Outbox


class FirstRow(_Tagged):
    """The first row of a batch, and the batch."""

    batch: _Batch

    @classmethod
    def of(cls, rows: torch.Tensor, outbox: Outbox) -> "FirstRow":
        """The first of some rows."""
        first = rows[0].as_subclass(cls)
        first.batch = rows.as_subclass(_Batch)
        first.batch.outbox = outbox
        return first


def _collated(rows: Sequence[Any], **_: Any) -> Any:
    """All rows as one tensor: the batch that the first one knows, where these are still its rows."""
    first, batch = rows[0].as_subclass(torch.Tensor), rows[0].batch
    start, step = batch.data_ptr(), batch.stride(0) * batch.itemsize
    there = [row.data_ptr() for row in rows] == list(range(start, start + len(rows) * step, step))
    same = all(row.shape == first.shape and row.stride() == first.stride() and row.dtype == first.dtype for row in rows)
    if there and same and batch.shape == (len(rows), *first.shape) and batch.is_contiguous():
        return batch
    return default_collate([first, *rows[1:]])


def _sent(batch: _Batch) -> Any:
    """How another process gets a batch."""
    plain = batch.as_subclass(torch.Tensor)
    if plain.nbytes < MIN_BYTES and plain.device.type == "cpu":
        return tensor_of, (array_of(plain),)
    parcel = batch.outbox.post(plain.data_ptr(), plain.nbytes) if plain.is_contiguous() else None
    return (_itself, (plain,)) if parcel is None else (_received, (parcel, plain.dtype, plain.shape))


def _received(parcel: Parcel, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(opened(parcel)).view(dtype).view(shape)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


default_collate_fn_map[FirstRow] = _collated  # as torch's documentation has it for types of one's own
ForkingPickler.register(_Batch, _sent)
