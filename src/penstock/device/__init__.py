"""Buffer pools, shared memory, slabs of rows, caches of decoded images, device memory and image kernels."""

from penstock.device._accelerator import Accelerator, DeviceEvent, DeviceRows, Staging
from penstock.device._arena import Arena, Runs, arena_bytes
from penstock.device._buffer_pool import Allocator, BufferPool, ByteAllocator, Slot, SlotPool, empty_small_pages
from penstock.device._fused_image import FusedImageTransform
from penstock.device._image_cache import ImageCache, SharedImageCache, ThreadImageCache, copy_images
from penstock.device._image_transform import RANDOM_VALUES_PER_IMAGE, ImageTransform
from penstock.device._lazy_array import lazy_empty
from penstock.device._options import DeviceOptions, DeviceTransform
from penstock.device._shared_memory import SharedMemory, SharedRegions, aligned
from penstock.device._slab import MAX_READERS, ArrayColumn, DeviceSlab, Slab, SlabColumns, on_device
from penstock.device._tensors import as_array, as_tensor, writable_view

__all__ = [
    "MAX_READERS",
    "RANDOM_VALUES_PER_IMAGE",
    "Accelerator",
    "Allocator",
    "Arena",
    "ArrayColumn",
    "BufferPool",
    "ByteAllocator",
    "DeviceEvent",
    "DeviceOptions",
    "DeviceRows",
    "DeviceSlab",
    "DeviceTransform",
    "FusedImageTransform",
    "ImageCache",
    "ImageTransform",
    "Runs",
    "SharedImageCache",
    "SharedMemory",
    "SharedRegions",
    "Slab",
    "SlabColumns",
    "Slot",
    "SlotPool",
    "Staging",
    "ThreadImageCache",
    "aligned",
    "arena_bytes",
    "as_array",
    "as_tensor",
    "copy_images",
    "empty_small_pages",
    "lazy_empty",
    "on_device",
    "writable_view",
]  # fmt: skip
