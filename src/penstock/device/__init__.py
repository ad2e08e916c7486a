"""Memory on both sides of the bus."""

from penstock.device._buffers import HostBuffers
from penstock.device._reserved import reserved
from penstock.device._shared import SharedMemory

__all__ = ["HostBuffers", "SharedMemory", "reserved"]
