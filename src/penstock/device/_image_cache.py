"""Decoded images that are needed repeatedly: each is decoded once, by whichever thread or process needs it first.

The contract of the cache in shared memory; if the code disagrees with this list, the code is wrong:

- An image is written only under an exclusive lock of its slot, and copied only under a shared one. The locks are those
  of the system, for bytes of a file: a process that dies loses them, and so its claims.
- A slot that is being written says so before, and names its image only after the last byte.
- Nobody waits for a lock: an image that another process decodes is looked for again later, and then decoded.
"""

import fcntl
import time
from collections.abc import Mapping, Sequence
from math import prod
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.device._shared_memory import SharedMemory

_WAYS = 4
"""Slots that an image may be in."""

Images = Mapping[int, npt.NDArray[Any]]
"""Images by their position in the table."""


class ImageCache(Protocol):
    """Images that were decoded, and are needed again soon."""

    def copy(self, column: str, places: Mapping[int, Sequence[int]], out: Any) -> list[int]:
        """Copy images to their places in `out`; returns the positions of those that are not there."""

    def claim(self, column: str, positions: Sequence[int]) -> list[int]:
        """Those of some images that nobody else decodes now; `add` must follow."""

    def add(self, column: str, images: Images) -> None:
        """Take over the images that were claimed, without those that could not be decoded."""


def copy_images(images: Images, places: Mapping[int, Sequence[int]], out: Any) -> None:
    """Copy images to all their places."""
    for position, image in images.items():
        for place in places[position]:
            out[place] = image


class ThreadImageCache(ImageCache):
    """The images that threads of this process used last, up to a number of bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self._room = capacity_bytes
        self._images: dict[tuple[str, int], npt.NDArray[Any]] = {}
        """The image that was used longest ago comes first."""
        self._lock = Lock()

    def copy(self, column: str, places: Mapping[int, Sequence[int]], out: Any) -> list[int]:
        known: dict[int, npt.NDArray[Any]] = {}
        with self._lock:
            for position in places:
                image = self._images.pop((column, position), None)
                if image is not None:
                    self._images[column, position] = known[position] = image
        copy_images(known, places, out)
        return [position for position in places if position not in known]

    def claim(self, column: str, positions: Sequence[int]) -> list[int]:  # noqa: ARG002
        return list(positions)

    def add(self, column: str, images: Images) -> None:
        with self._lock:
            for position, image in images.items():
                if (column, position) not in self._images:
                    self._images[column, position] = image
                    self._room -= image.nbytes
            while self._room < 0 and self._images:
                self._room += self._images.pop(next(iter(self._images))).nbytes


class _Slots:
    """The images of one column in shared memory: a few slots for each remainder of positions."""

    def __init__(self, memory: npt.NDArray[np.uint8], start: int, count: int, shape: tuple[int, ...]) -> None:
        """`start` is where they begin in the memory."""
        self.start, self._sets = start, count // _WAYS
        memory = memory[start:]
        self.positions = memory[: 8 * count].view(np.int64)
        """For each slot the position of its image plus 1, negative while it is written; 0 for none."""
        self.used = memory[8 * count : 16 * count].view(np.int64)
        """When each was used last."""
        self.images = memory[16 * count : (16 + prod(shape)) * count].reshape(count, *shape)

    def of(self, position: int) -> range:
        """The slots that an image may be in."""
        first = position % self._sets * _WAYS
        return range(first, first + _WAYS)

    def find(self, position: int) -> int | None:
        """The slot that holds an image."""
        return next((slot for slot in self.of(position) if self.positions[slot] == position + 1), None)

    def choose(self, position: int) -> int:
        """The slot for an image: one that was claimed for it, or the one that was used longest ago."""
        slots = self.of(position)
        oldest = min(slots, key=lambda slot: int(self.used[slot]))
        return next((slot for slot in slots if self.positions[slot] == -1 - position), oldest)


class SharedImageCache(ImageCache):
    """The images of a table that worker processes share; each has one of these for the same memory."""

    def __init__(self, memory: SharedMemory, start: int, size: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """In `size` bytes of the memory, all zero at first; `shapes` are those of the images of each column."""
        self._memory = memory
        self._columns: dict[str, _Slots] = {}
        self._claimed: dict[int, int] = {}
        """By the address of its slot, the position of an image that this process decodes."""
        count = max(_WAYS, size // max(1, sum(16 + prod(shape) for shape in shapes.values())) // _WAYS * _WAYS)
        for name, shape in shapes.items():
            self._columns[name] = _Slots(memory.bytes, start, count, shape)
            start += -(-count * (16 + prod(shape)) // 8) * 8

    @staticmethod
    def bytes_for(size: int, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Bytes of memory for about `size` bytes of images."""
        return size + sum(_WAYS * (24 + prod(shape)) for shape in shapes.values())

    def copy(self, column: str, places: Mapping[int, Sequence[int]], out: Any) -> list[int]:
        slots, missing = self._columns[column], list[int]()
        for position in places:
            slot = slots.find(position)
            if slot is None or not self._lock(slots.start + 8 * slot, fcntl.LOCK_SH):
                missing.append(position)
                continue
            if slots.positions[slot] == position + 1:
                copy_images({position: slots.images[slot]}, places, out)
                slots.used[slot] = time.monotonic_ns()
            else:
                missing.append(position)
            self._unlock(slots.start + 8 * slot)
        return missing

    def claim(self, column: str, positions: Sequence[int]) -> list[int]:
        slots, mine = self._columns[column], list[int]()
        for position in positions:
            slot = slots.choose(position)
            address = slots.start + 8 * slot
            if address in self._claimed:  # for another image: this one is not kept
                mine.append(position)
            elif self._lock(address, fcntl.LOCK_EX):
                if slots.find(position) is not None:  # by another process meanwhile
                    self._unlock(address)
                    continue
                slots.positions[slot], slots.used[slot] = -1 - position, time.monotonic_ns()
                self._claimed[address] = position
                mine.append(position)
        return mine

    def add(self, column: str, images: Images) -> None:
        slots = self._columns[column]
        for address, position in self._claimed.items():
            slot = (address - slots.start) // 8
            if position in images:
                slots.images[slot] = images[position]
                slots.positions[slot] = position + 1
            self._unlock(address)
        self._claimed.clear()

    def _lock(self, address: int, kind: int) -> bool:
        try:
            fcntl.lockf(self._memory.fd, kind | fcntl.LOCK_NB, 1, address)
        except OSError:
            return False
        return True

    def _unlock(self, address: int) -> None:
        fcntl.lockf(self._memory.fd, fcntl.LOCK_UN, 1, address)
