"""Crop, flip, scale, cast and lay out images: in one fused kernel on a GPU, or with torch operations.

Triton compiles the kernel on first use; it is installed with torch for GPUs. Both ways give bit-identical results.
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
_launch_lock = Lock()  # Triton does not document that compilation is thread-safe


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedImageTransform:
    """A transform of images of shape (height, width, channels)."""

    size: tuple[int, int]
    """Height and width of the crop."""
    crops: npt.NDArray[np.int32] | None = None
    """The first row, the first column, and 1 if flipped, for each image; None keeps whole images."""
    scale: "tuple[torch.Tensor, torch.Tensor] | None" = None
    """The factor and then the offset of each channel."""
    dtype: "torch.dtype"
    channels_first: bool = False
    """Whether channels come before height and width, in shape and in memory."""

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        """The transformed images, contiguous."""
        import torch  # an optional dependency, and slow to import

        kernel = _kernel(images.device) if images.is_cuda and images.dtype == torch.uint8 else None
        return self.eager(images) if kernel is None else self.fused(kernel, images)

    def eager(self, images: "torch.Tensor") -> "torch.Tensor":
        """The same with torch operations."""
        import torch  # an optional dependency, and slow to import

        if self.crops is not None:
            height, width = self.size
            top, left, flipped = (self.crops[:, index, None].astype(np.int64) for index in range(3))
            columns = np.arange(width)
            images = images[
                _to_device_of(images, np.arange(len(images))[:, None, None]),
                _to_device_of(images, (top + np.arange(height))[:, :, None]),
                _to_device_of(images, (left + np.where(flipped, width - 1 - columns, columns))[:, None, :]),
            ]
        if self.scale is not None:
            factors, offsets = self.scale
            images = torch.mul(images, factors).add_(offsets)
        images = images.to(self.dtype)
        return (images.permute(0, 3, 1, 2) if self.channels_first else images).contiguous()

    def fused(self, kernel: Any, images: "torch.Tensor") -> "torch.Tensor":
        """The same with one kernel launch."""
        import torch  # an optional dependency, and slow to import

        count, channels = len(images), images.shape[3]
        shape = (channels, *self.size) if self.channels_first else (*self.size, channels)
        out = torch.empty((count, *shape), dtype=self.dtype, device=images.device)
        crops = out if self.crops is None else _to_device_of(images, self.crops)
        factors, offsets = self.scale or (out, out)
        blocks = -(-out[:1].numel() // _BLOCK)
        with _launch_lock:
            kernel[(count * blocks,)](
                images, out, crops, factors, offsets, *images.stride(), *self.size, blocks,
                CHANNELS=channels, CROPPED=self.crops is not None, SCALED=self.scale is not None,
                CHANNELS_LAST=not self.channels_first, BLOCK=_BLOCK, enable_fp_fusion=False,
            )  # fmt: skip
        return out


@cache
def _kernel(device: "torch.device") -> Any:
    """The kernel; None if Triton is not installed or cannot compile it: it needs a C compiler."""
    import torch  # an optional dependency, and slow to import

    try:
        from penstock.device._image_kernel import image_kernel

        trial = torch.zeros((1, 1, 1, 1), dtype=torch.uint8, device=device)
        FusedImageTransform(size=(1, 1), dtype=torch.uint8).fused(image_kernel, trial)
    except Exception:  # whatever is missing, torch operations do not need it
        return None
    return image_kernel


def _to_device_of(images: "torch.Tensor", array: npt.NDArray[Any]) -> "torch.Tensor":
    import torch  # an optional dependency, and slow to import

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if images.is_cuda:
        tensor = tensor.pin_memory()  # a copy from pageable memory would block the host
    return tensor.to(images.device, non_blocking=True)
