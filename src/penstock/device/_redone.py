"""Pictures cut, mirrored, scaled and laid out anew: in one pass over them on a GPU, or by plain torch.

The pass is a kernel that Triton builds when it is first asked for; Triton comes with torch for GPUs. Both ways give the
same numbers, to the last bit.
"""

from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_BLOCK = 1024
_building = Lock()  # Triton does not promise that two threads may


@dataclass(frozen=True, slots=True, kw_only=True)
class Redo:
    """What is done to pictures, each of them height, width and colours."""

    size: tuple[int, int]
    """Height and width of what is cut out of each."""
    places: npt.NDArray[np.int32] | None = None
    """For each its first row, its first column, and 1 if it is mirrored; None takes all of it as it is."""
    scale: "tuple[torch.Tensor, torch.Tensor] | None" = None
    """What each colour is multiplied with, and what is added then."""
    dtype: "torch.dtype"
    colours_first: bool = False
    """Whether a picture's colours lie one behind the other in memory, and so in the shape."""

    def __call__(self, pictures: "torch.Tensor") -> "torch.Tensor":
        """The result is contiguous."""
        import torch  # an extra, and slow to import

        kernel = _kernel(pictures.device) if pictures.is_cuda and pictures.dtype == torch.uint8 else None
        return self.plainly(pictures) if kernel is None else self._at_once(kernel, pictures)

    def plainly(self, pictures: "torch.Tensor") -> "torch.Tensor":
        """The same by plain torch."""
        import torch  # an extra, and slow to import

        if self.places is not None:
            height, width = self.size
            top, left, mirrored = (self.places[:, column, None].astype(np.int64) for column in range(3))
            across = np.arange(width)
            pictures = pictures[
                _on(pictures, np.arange(len(pictures))[:, None, None]),
                _on(pictures, (top + np.arange(height))[:, :, None]),
                _on(pictures, (left + np.where(mirrored, width - 1 - across, across))[:, None, :]),
            ]
        if self.scale is not None:
            factors, offsets = self.scale
            pictures = torch.mul(pictures, factors).add_(offsets)
        pictures = pictures.to(self.dtype)
        return (pictures.permute(0, 3, 1, 2) if self.colours_first else pictures).contiguous()

    def _at_once(self, kernel: Any, pictures: "torch.Tensor") -> "torch.Tensor":
        import torch  # an extra, and slow to import

        count, colours = len(pictures), pictures.shape[3]
        shape = (colours, *self.size) if self.colours_first else (*self.size, colours)
        out = torch.empty((count, *shape), dtype=self.dtype, device=pictures.device)
        places = out if self.places is None else _on(pictures, self.places)
        factors, offsets = self.scale or (out, out)
        blocks = -(-out[:1].numel() // _BLOCK)
        with _building:
            kernel[(count * blocks,)](
                pictures, out, places, factors, offsets, *pictures.stride(), *self.size, blocks,
                COLOURS=colours, PLACED=self.places is not None, SCALED=self.scale is not None,
                COLOURS_LAST=not self.colours_first, BLOCK=_BLOCK, enable_fp_fusion=False,
            )  # fmt: skip
        return out


@cache
def _kernel(device: "torch.device") -> Any:
    """The kernel; None where Triton is not installed, or cannot build one: it needs a compiler of C."""
    import torch  # an extra, and slow to import

    try:
        from penstock.device._pixels_kernel import one_pass

        trial = torch.zeros((1, 1, 1, 1), dtype=torch.uint8, device=device)
        Redo(size=(1, 1), dtype=torch.uint8)._at_once(one_pass, trial)
    except Exception:  # whatever is missing, plain torch does without it
        return None
    return one_pass


def _on(pictures: "torch.Tensor", array: npt.NDArray[Any]) -> "torch.Tensor":
    import torch  # an extra, and slow to import

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if pictures.is_cuda:
        tensor = tensor.pin_memory()  # else the copy would wait for the stream
    return tensor.to(pictures.device, non_blocking=True)
