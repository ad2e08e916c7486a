"""Rows of tensors for torch's own DataLoader."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from penstock.device import as_tensor
from penstock.engine import MixedRowReader, RowReader, accepts_generator, samples_of, writable
from penstock.errors import InvalidInputError

_SMALL_BYTES = 64 << 10  # a copy is cheap beside the work per batch


class RowDataset(Dataset[dict[str, Any]]):
    """A map-style dataset of a table's rows."""

    def __init__(self, rows: RowReader | MixedRowReader, transform: Callable[..., Any] | None) -> None:
        self._rows, self._transform = rows, transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch, read together; large rows of one column are views of one tensor."""
        columns = {
            name: own_storage(to_tensor(values).unbind()) if isinstance(values, np.ndarray) else values
            for name, values in self._rows.read(indices).items()
        }
        samples = self._transformed(samples_of(columns, to_tensor))
        return [_Sample(sample) if type(sample) is dict else sample for sample in samples]

    def _transformed(self, samples: list[dict[str, Any]]) -> list[Any]:
        if self._transform is None:
            return samples
        if not accepts_generator(self._transform):
            return [self._transform(sample) for sample in samples]
        # Drawn for each batch: the seed of a process stays the same from epoch to epoch.
        seed = int(torch.randint(1 << 62, ()))
        return [self._transform(sample, np.random.default_rng([seed, k])) for k, sample in enumerate(samples)]


class _Sample(dict[str, Any]):
    """A sample that torch's `default_collate` leaves to `_collate`."""


def _collate(samples: Sequence[_Sample], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """As `default_collate` does; raises `InvalidInputError` that names the column if its values cannot be stacked."""
    found = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        try:
            found[name] = collate(values, collate_fn_map=collate_fn_map)
        except (RuntimeError, TypeError) as error:
            shapes = dict.fromkeys(tuple(value.shape) for value in values if isinstance(value, torch.Tensor))
            reason = (
                str(error)
                if len(shapes) < 2
                else f"they have different shapes, {' and '.join(map(str, [*shapes][:2]))}"
            )
            raise InvalidInputError(
                f"the values of column {name!r} cannot be stacked: {reason}; pass image_size=(height, width) "
                "or a transform that gives all values one shape to pytorch(), or a collate_fn to DataLoader; "
                "pytorch(batch_size=…) needs none of them"
            ) from error
    return found


default_collate_fn_map[_Sample] = _collate  # torch's way to extend `default_collate`


def to_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the array's memory, or that of a copy if the array is read-only."""
    return as_tensor(writable(array))


def own_storage(views: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Copies of small views of one tensor: torch saves and sends a tensor with all of its storage."""
    if not views or views[0].device.type != "cpu" or views[0].nbytes > _SMALL_BYTES:
        return views
    return [view.clone() for view in views]
