"""Where batches arrive, and what happens to them there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DeviceTransform = Callable[..., Any] | Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Where a loader puts its batches, and what happens to them there."""

    device: Any = "cuda"
    """"cuda" (under torch.distributed the GPU of the local rank), "cuda:1", "cpu", or a `torch.device`."""
    transform: DeviceTransform | None = None
    """A function of a batch on the device, or a mapping from columns to functions of their tensors, such as
    `penstock.ImageTransform(…)`; a function with a second parameter also gets a `numpy.random.Generator` that depends
    only on the seed, the epoch and the row."""
    memory: int | None = None
    """Bytes of device memory for the shuffle window; by default what the shuffle needs, up to a quarter of the free
    memory. If the window does not fit, it stays in host memory."""
