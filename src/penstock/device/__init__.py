"""Buffer pools, shared memory, device memory and image kernels."""

from penstock.device._accelerator import Accelerator, DeviceEvent, DeviceRows, Staging
from penstock.device._buffer_pool import BufferPool, ByteAllocator, empty_small_pages
from penstock.device._fused_image import FusedImageTransform
from penstock.device._image_transform import RANDOM_VALUES_PER_IMAGE, ImageTransform
from penstock.device._lazy_array import lazy_empty
from penstock.device._options import DeviceOptions, DeviceTransform
from penstock.device._shared_memory import SharedMemory, SharedRegions, forks
from penstock.device._tensors import as_array, as_tensor, writable_view

__all__ = [
    "RANDOM_VALUES_PER_IMAGE",
    "Accelerator",
    "BufferPool",
    "ByteAllocator",
    "DeviceEvent",
    "DeviceOptions",
    "DeviceRows",
    "DeviceTransform",
    "FusedImageTransform",
    "ImageTransform",
    "SharedMemory",
    "SharedRegions",
    "Staging",
    "as_array",
    "as_tensor",
    "empty_small_pages",
    "forks",
    "lazy_empty",
    "writable_view",
]  # fmt: skip
