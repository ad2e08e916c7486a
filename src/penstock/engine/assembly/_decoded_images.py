"""A cache of decoded images, for windows that share them."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy.typing as npt

Image = npt.NDArray[Any]


class DecodedImages:
    """The images that were used last, by column and position in the table, up to a number of bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self._room = capacity_bytes
        self._images: dict[tuple[str, int], Image] = {}
        """The image that was used longest ago comes first."""
        self._lock = Lock()

    def get(self, column: str, positions: list[int]) -> dict[int, Image]:
        """Those of some images that are cached, by position."""
        found: dict[int, Image] = {}
        with self._lock:
            for position in positions:
                image = self._images.pop((column, position), None)
                if image is not None:
                    self._images[column, position] = found[position] = image
        return found

    def add(self, column: str, images: Mapping[int, Image]) -> None:
        """Cache images by position, in place of those that were used longest ago."""
        with self._lock:
            for position, image in images.items():
                if (column, position) not in self._images:
                    self._images[column, position] = image
                    self._room -= image.nbytes
            while self._room < 0 and self._images:
                self._room += self._images.pop(next(iter(self._images))).nbytes
