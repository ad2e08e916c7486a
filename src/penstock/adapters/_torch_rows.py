"""Rows for `torch.utils.data.DataLoader`, which chooses and batches them, mostly in other processes.

What torch does with the samples of a batch costs more than to read them: it copies them to new shared memory, which
the system clears and both processes map page by page. Here a worker's rows already lie side by side in memory that is
used again. The first of them knows that; where the others still follow it, `default_collate` gives that memory as it
is, and it crosses as a few words. Whatever else is done with samples finds tensors as any others.
"""

from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from penstock.device import Outbox, Parcel, array_of, opened, tensor_of
from penstock.engine import RowReader, samples_of, takes_generator, writable

Sample = dict[str, Any]

_FEW_BYTES = 64 << 10


def own_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The same memory as a tensor, where that may be written."""
    return tensor_of(writable(array))


class RowDataset(Dataset[Sample]):
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
        columns = {
            name: own_tensor(values) if isinstance(values, np.ndarray) else values
            for name, values in self._rows.read(indices).items()
        }
        samples = samples_of(columns, own_tensor)
        if sent and samples:
            whole = {name: values for name, values in columns.items() if isinstance(values, torch.Tensor)}
            samples[0] |= {name: _First.of(values, self._rows.outbox) for name, values in whole.items()}
        if self._transform is None:
            return samples
        if not takes_generator(self._transform):
            return [self._transform(sample) for sample in samples]
        seed = torch.initial_seed()
        generators = (np.random.default_rng([seed, int(index) % len(self)]) for index in indices)
        return [self._transform(sample, generator) for sample, generator in zip(samples, generators, strict=True)]


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


class _First(_Tagged):
    """The first row of a batch, and the batch."""

    batch: _Batch

    @classmethod
    def of(cls, rows: torch.Tensor, outbox: Outbox) -> "_First":
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
    if plain.nbytes < _FEW_BYTES and plain.device.type == "cpu":
        return tensor_of, (array_of(plain),)
    parcel = batch.outbox.post(plain.data_ptr(), plain.nbytes) if plain.is_contiguous() else None
    return (_itself, (plain,)) if parcel is None else (_received, (parcel, plain.dtype, plain.shape))


def _received(parcel: Parcel, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(opened(parcel)).view(dtype).view(shape)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


default_collate_fn_map[_First] = _collated  # as torch's documentation has it for types of one's own
ForkingPickler.register(_Batch, _sent)
