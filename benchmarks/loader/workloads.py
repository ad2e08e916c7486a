"""The rows of the three workloads, the same for us and for every peer, made chunk by chunk.

Nothing here needs Penstock: the peers' environment imports it too.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

CLASSES = 100
QUALITY = 90
MIN_WINDOW_BYTES, MAX_WINDOW_BYTES, WINDOW_SHARE = 640 << 20, 1 << 30, 6
_CHUNK_BYTES = 16 << 20
CANVAS_SIDE = 1024
_SLOPE = 1.3  # amplitude falls with frequency about as in photographs: 15 to 30 KB each at this quality


@dataclass(frozen=True)
class Workload:
    """So many rows of one kind; the table is sorted by label where it has one."""

    name: str
    rows: int

    @property
    def column(self) -> str:
        return "tokens" if self.name == "tokens" else "image"

    @property
    def has_label(self) -> bool:
        return self.name != "tokens"

    @property
    def shape(self) -> tuple[int, ...]:
        """What one row of a batch looks like."""
        return {"tokens": (1024,), "images": (224, 224, 3), "jpeg": (256, 256, 3)}[self.name]

    @property
    def dtype(self) -> str:
        return "uint16" if self.name == "tokens" else "uint8"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a batch."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def batch_size(self) -> int:
        return 256 if self.name == "tokens" else 64

    @property
    def chunk_rows(self) -> int:
        return max(1, _CHUNK_BYTES // self.row_bytes)

    @property
    def num_chunks(self) -> int:
        return -(-self.rows // self.chunk_rows)

    def chunk(self, index: int) -> dict[str, Any]:
        """Some consecutive rows as columns: arrays, or a list of encoded images."""
        start = index * self.chunk_rows
        numbers = np.arange(start, min(start + self.chunk_rows, self.rows), dtype=np.int64)
        rng = np.random.default_rng([self.rows, index])
        if self.name == "jpeg":
            return {"image": _images(rng, len(numbers)), "label": self.labels(numbers)}
        values = np.frombuffer(rng.bytes(len(numbers) * self.row_bytes), self.dtype).reshape(-1, *self.shape).copy()
        marks = numbers.astype("<u4").view(self.dtype).reshape(len(numbers), -1)
        values.reshape(len(numbers), -1)[:, : marks.shape[1]] = marks
        return {self.column: values} | ({"label": self.labels(numbers)} if self.has_label else {})

    def chunks(self) -> Iterator[dict[str, Any]]:
        return map(self.chunk, range(self.num_chunks))

    def labels(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The class of each row: as many classes as there are, one after the other."""
        return numbers * CLASSES // self.rows

    def row_numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Which rows of a raw workload these are: each begins with its number."""
        marks = np.ascontiguousarray(values.reshape(len(values), -1)[:, : 4 // values.itemsize])
        return marks.view("<u4")[:, 0].astype(np.int64)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def window_bytes(table_bytes: int) -> int:
    """Our default shuffle window: a part of the table, within bounds."""
    return min(max(table_bytes // WINDOW_SHARE, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES, table_bytes)


def raw(name: str, size_bytes: int) -> Workload:
    """A workload of about so many bytes."""
    return Workload(name, max(1, size_bytes // Workload(name, 1).row_bytes))


def _images(rng: np.random.Generator, count: int) -> list[bytes]:
    """Pieces of one large canvas, each with a contrast of its own."""
    whole = photo_canvas()
    side = Workload("jpeg", 1).shape[0]
    corners = rng.integers(0, CANVAS_SIDE - side, (count, 2))
    contrasts = rng.uniform(0.6, 1.2, count).astype(np.float32)

    def encode(row: int) -> bytes:
        y, x = corners[row]
        piece = whole[y : y + side, x : x + side] * contrasts[row] + np.float32(128)
        data: bytes = simplejpeg.encode_jpeg(
            np.clip(piece, 0, 255).astype(np.uint8), quality=QUALITY, colorsubsampling="420"
        )
        return data

    with ThreadPoolExecutor() as pool:
        return list(pool.map(encode, range(count)))


@cache
def photo_canvas() -> npt.NDArray[np.float32]:
    """Noise whose spectrum falls off as that of photographs does: three related colours around 0."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(CANVAS_SIDE)[:, None], np.fft.rfftfreq(CANVAS_SIDE)[None])
    frequency[0, 0] = 1

    def smooth() -> npt.NDArray[np.float64]:
        return np.fft.irfft2(np.fft.rfft2(rng.standard_normal((CANVAS_SIDE, CANVAS_SIDE))) / frequency**_SLOPE)

    shared = smooth()
    colours = [shared + 0.4 * smooth() for _ in range(3)]
    return np.stack([(colour - colour.mean()) / colour.std() * 55 for colour in colours], -1).astype(np.float32)
