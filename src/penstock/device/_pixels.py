"""What is usually done to pictures on their way into a model, in a few passes over the whole batch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from penstock.device._redone import Redo
from penstock.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

RANDOM_NUMBERS = 3
"""For each row: where it is cropped, in height and in width, and whether it is flipped."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Crop, flip, scale, normalise and lay out pictures, for `device_transform`; the same on every device.

    Random choices depend on the seed, the epoch and the row alone, so a resumed run repeats them.
    """

    crop: tuple[int, int] | None = None
    """Height and width of what is cut out of each picture."""
    crop_at: Literal["random", "center"] = "random"
    flip: float = 0.0
    """How probable it is that a picture is mirrored, left to right."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """The type of the result; None leaves bytes as they are, and then nothing is scaled."""
    scale: float = 1 / 255
    """Values are multiplied with it first."""
    mean: tuple[float, ...] | None = None
    """Taken off then, for each colour."""
    std: tuple[float, ...] | None = None
    """And what is left divided by this."""
    channels_first: bool = True
    """Colours before height and width, as most models of PyTorch want it."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """How colours that come first lie in memory: "channels_last" costs nothing, and convolutions like it."""

    def __post_init__(self) -> None:
        if self.crop is not None and (len(self.crop) != 2 or any(length < 1 for length in self.crop)):
            raise InvalidInputError(f"crop is a height and a width in pixels, not {self.crop!r}")
        if self.crop_at not in ("random", "center"):
            raise InvalidInputError(f'crop_at is "random" or "center", not {self.crop_at!r}')
        if self.memory_format not in ("contiguous", "channels_last"):
            raise InvalidInputError(f'memory_format is "contiguous" or "channels_last", not {self.memory_format!r}')
        if not 0 <= self.flip <= 1:
            raise InvalidInputError(f"flip is a probability, not {self.flip!r}")
        if self.dtype not in (None, "float32", "float16", "bfloat16"):
            raise InvalidInputError(f'dtype is "float32", "float16", "bfloat16" or None, not {self.dtype!r}')
        if self.dtype is None and (self.mean is not None or self.std is not None):
            raise InvalidInputError("bytes cannot be normalised: name a dtype beside mean and std")

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return self.flip > 0 or (self.crop is not None and self.crop_at == "random")

    def __call__(self, pictures: "torch.Tensor", numbers: npt.NDArray[np.float64] | None) -> "torch.Tensor":
        """Pictures, height and width and colours, with random numbers below 1 for each, if it draws any."""
        if pictures.ndim != 4:
            raise InvalidInputError(
                f"Pixels works on pictures of one size, with height, width and colours, not on a tensor of shape "
                f"{tuple(pictures.shape)}; give the loader an image_size"
            )
        size = self._size(pictures)
        colours_first = self.channels_first and self.memory_format == "contiguous"
        unchanged = self.crop is None and not self.flip and self.dtype is None and not colours_first
        if not unchanged:
            redo = Redo(
                size=size,
                places=self._places(pictures, size, numbers) if self.crop is not None or self.flip else None,
                scale=None if self.dtype is None else _factors(self, pictures.shape[3], pictures.device),
                dtype=pictures.dtype if self.dtype is None else _dtype(self.dtype),
                colours_first=colours_first,
            )
            pictures = redo(pictures)
        return pictures.permute(0, 3, 1, 2) if self.channels_first and not colours_first else pictures

    def _size(self, pictures: "torch.Tensor") -> tuple[int, int]:
        height, width = pictures.shape[1:3]
        rows, columns = self.crop or (height, width)
        if rows > height or columns > width:
            raise InvalidInputError(f"pictures of {height} x {width} cannot be cropped to {rows} x {columns}")
        return rows, columns

    def _places(
        self, pictures: "torch.Tensor", size: tuple[int, int], numbers: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.int32]:
        """The first row and column that is left of each picture, and whether it is mirrored."""
        room = np.array(pictures.shape[1:3]) - size
        places = np.zeros((len(pictures), 3), np.int32)
        places[:, :2] = room // 2 if numbers is None or self.crop_at == "center" else numbers[:, :2] * (room + 1)
        if numbers is not None:
            places[:, 2] = numbers[:, 2] < self.flip
        return places


def _dtype(name: str) -> "torch.dtype":
    import torch  # an extra, and slow to import

    found: torch.dtype = getattr(torch, name)
    return found


@lru_cache(maxsize=64)
def _factors(pixels: Pixels, colours: int, device: "torch.device") -> tuple["torch.Tensor", "torch.Tensor"]:
    """What each colour is multiplied with, and what is added then."""
    import torch  # an extra, and slow to import

    std = np.ones(colours) if pixels.std is None else np.asarray(pixels.std, np.float64)
    mean = np.zeros(colours) if pixels.mean is None else np.asarray(pixels.mean, np.float64)
    if len(std) != colours or len(mean) != colours:
        raise InvalidInputError(f"pictures have {colours} colours, and mean or std has another number of them")
    factor, offset = (pixels.scale / std).astype(np.float32), (-mean / std).astype(np.float32)
    found = torch.from_numpy(factor).to(device), torch.from_numpy(offset).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # others will use them on streams of their own
    return found
