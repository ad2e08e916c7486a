"""The rows of all figures, the same for us and for every peer; nothing here needs Penstock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg

from benchmarks.loader.workloads import CANVAS_SIDE, QUALITY, photo_canvas

STEPS, SIDE, ACTION = 40, 128, 7
"""Steps of an episode, pixels of its square images, numbers of an action."""
FPS = 10
IMAGE_OFFSETS, ACTION_OFFSETS = (-1, 0), tuple(range(16))
SEQUENCE = 4096
TOKENS_PER_DOCUMENT, _SIGMA = 600, 1.0
_PAN = 2
"""Pixels that the camera moves from one step to the next."""


@dataclass(frozen=True)
class Episode:
    """One episode: JPEG images and actions, step by step."""

    number: int
    images: list[bytes]
    actions: npt.NDArray[np.float32]


def episodes(count: int) -> Iterator[Episode]:
    """Episodes of a camera that moves over a canvas with the spectrum of photographs."""
    photo_canvas()  # computed once, before the threads ask for it
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_episode, range(count))


def documents(tokens: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """About so many tokens in documents of log-normal lengths: all tokens, and where documents begin and end."""
    rng = np.random.default_rng(0)
    location = np.log(TOKENS_PER_DOCUMENT) - _SIGMA**2 / 2
    lengths = np.maximum(1, rng.lognormal(location, _SIGMA, max(1, tokens // TOKENS_PER_DOCUMENT))).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return np.frombuffer(rng.bytes(2 * int(bounds[-1])), np.uint16), bounds


def _episode(number: int) -> Episode:
    rng = np.random.default_rng(number)
    y, x = rng.integers(0, CANVAS_SIDE - SIDE - STEPS * _PAN, 2).tolist()
    contrast = np.float32(rng.uniform(0.6, 1.2))
    images = [_encoded(y + _PAN * step, x + _PAN * step, contrast) for step in range(STEPS)]
    return Episode(number, images, rng.standard_normal((STEPS, ACTION), np.float32))


def _encoded(y: int, x: int, contrast: np.float32) -> bytes:
    image = photo_canvas()[y : y + SIDE, x : x + SIDE] * contrast + np.float32(128)
    data: bytes = simplejpeg.encode_jpeg(
        np.clip(image, 0, 255).astype(np.uint8), quality=QUALITY, colorsubsampling="420"
    )
    return data
