"""The same memory as an array and as a tensor; numpy's extra types have no name that both know."""

from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from penstock.types import Buffer

if TYPE_CHECKING:
    import torch

_EXTRA = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


@cache
def _bits() -> dict[np.dtype[Any], tuple[np.dtype[Any], "torch.dtype"]]:
    """Types that numpy has from elsewhere: as what they cross over, and what they are then."""
    import torch  # an extra, and slow to import

    types = [np.dtype(getattr(ml_dtypes, name)) for name in _EXTRA]
    return {type: (np.dtype(f"int{8 * type.itemsize}"), getattr(torch, type.name)) for type in types}


def tensor_of(array: npt.NDArray[Any]) -> "torch.Tensor":
    """An array as a tensor; times become whole numbers."""
    import torch  # an extra, and slow to import

    if array.dtype in _bits():
        bits, dtype = _bits()[array.dtype]
        return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array.view(np.int64) if array.dtype.kind in "Mm" else array)


def array_of(tensor: "torch.Tensor") -> npt.NDArray[Any]:
    """A tensor in this process's memory as an array."""
    import torch  # an extra, and slow to import

    for dtype, (bits, its) in _bits().items():
        if tensor.dtype == its:
            return tensor.view(getattr(torch, bits.name)).numpy().view(dtype)
    return tensor.numpy()


class _AsWritable:
    """Memory that may only be read, under another name."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory, known = memory, memory.__array_interface__
        self.__array_interface__ = known | {"data": (known["data"][0], False)}


def shared_bytes(data: Buffer) -> npt.NDArray[np.uint8]:
    """Bytes as an array that can be a tensor: tensors know no memory that may only be read. Nobody writes to it."""
    return np.asarray(_AsWritable(np.frombuffer(data, np.uint8)))
