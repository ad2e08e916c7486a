"""Memory on both sides of the bus."""

from penstock.device._accelerator import Accelerator, DeviceRows, Mark, Staging
from penstock.device._buffers import Allocate, HostBuffers, in_small_pages
from penstock.device._outbox import MIN_BYTES, Inbox, Outbox, Parcel, opened
from penstock.device._pixels import RANDOM_NUMBERS, Pixels
from penstock.device._redone import Redo
from penstock.device._reserved import reserved
from penstock.device._tensors import array_of, shared_bytes, tensor_of

__all__ = [
    "MIN_BYTES", "RANDOM_NUMBERS", "Accelerator", "Allocate", "DeviceRows", "HostBuffers", "Inbox", "Mark", "Outbox",
    "Parcel", "Pixels", "Redo", "Staging", "array_of", "in_small_pages", "opened", "reserved", "shared_bytes",
    "tensor_of",
]  # fmt: skip
