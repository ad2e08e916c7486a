"""Conversion between numpy arrays and torch tensors without a copy, including the dtypes of ml_dtypes."""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.types import SMALL_FLOATS, Buffer

if TYPE_CHECKING:
    import torch


@cache
def _extra_dtypes() -> dict[np.dtype[Any], tuple[np.dtype[Any], "torch.dtype"]]:
    """For each dtype of ml_dtypes, the integer dtype of the same width and torch's dtype."""
    import torch  # an optional dependency, and slow to import

    return {dtype: (np.dtype(f"int{8 * dtype.itemsize}"), getattr(torch, name)) for name, dtype in SMALL_FLOATS.items()}


def as_tensor(array: npt.NDArray[Any]) -> "torch.Tensor":
    """A tensor that shares the array's memory; datetime64 and timedelta64 become int64."""
    import torch  # an optional dependency, and slow to import

    if array.dtype in _extra_dtypes():
        bits, dtype = _extra_dtypes()[array.dtype]
        return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array.view(np.int64) if array.dtype.kind in "Mm" else array)


def as_array(tensor: "torch.Tensor") -> npt.NDArray[Any]:
    """An array that shares the memory of a CPU tensor."""
    import torch  # an optional dependency, and slow to import

    for dtype, (bits, torch_dtype) in _extra_dtypes().items():
        if tensor.dtype == torch_dtype:
            return tensor.view(getattr(torch, bits.name)).numpy().view(dtype)
    return tensor.numpy()


class _WritableInterface:
    """Presents read-only memory as writable."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory, interface = memory, memory.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def writable_view(data: Buffer) -> npt.NDArray[np.uint8]:
    """Bytes as an array that torch accepts: it refuses read-only memory. The caller must not write to it."""
    return np.asarray(_WritableInterface(np.frombuffer(data, np.uint8)))
