"""What is usually done to pictures on their way into a model, in a few passes over the whole batch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

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
        if self.crop is not None or self.flip:
            pictures = self._cut(pictures, numbers)
        if self.dtype is not None:
            pictures = self._numbers(pictures)
        if not self.channels_first:
            return pictures
        first = pictures.permute(0, 3, 1, 2)
        return first if self.memory_format == "channels_last" else first.contiguous()

    def _cut(self, pictures: "torch.Tensor", numbers: npt.NDArray[np.float64] | None) -> "torch.Tensor":
        count, height, width = pictures.shape[:3]
        rows, columns = self.crop or (height, width)
        if rows > height or columns > width:
            raise InvalidInputError(f"pictures of {height} x {width} cannot be cropped to {rows} x {columns}")
        room = np.array([height - rows, width - columns])
        if numbers is None or self.crop_at == "center":
            corners = np.broadcast_to(room // 2, (count, 2))
        else:
            corners = (numbers[:, :2] * (room + 1)).astype(np.int64)
        across = np.broadcast_to(np.arange(columns), (count, columns))
        if numbers is not None and self.flip:
            across = np.where(numbers[:, 2:] < self.flip, columns - 1 - across, across)
        return pictures[
            _on(pictures, np.arange(count)[:, None, None]),
            _on(pictures, (corners[:, :1] + np.arange(rows))[:, :, None]),
            _on(pictures, (corners[:, 1:] + across)[:, None, :]),
        ]

    def _numbers(self, pictures: "torch.Tensor") -> "torch.Tensor":
        import torch  # an extra, and slow to import

        factor, offset = _factors(self, pictures.shape[3], pictures.device)
        return torch.mul(pictures, factor).add_(offset).to(getattr(torch, self.dtype or "float32"))


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


def _on(pictures: "torch.Tensor", array: npt.NDArray[Any]) -> "torch.Tensor":
    import torch  # an extra, and slow to import

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if pictures.is_cuda:
        tensor = tensor.pin_memory()  # else the copy would wait for the stream
    return tensor.to(pictures.device, non_blocking=True)
