"""The usual image augmentation and normalisation, for a whole batch at once."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from penstock.device._fused_image import FusedImageTransform
from penstock.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

RANDOM_VALUES_PER_IMAGE = 3
"""The vertical and the horizontal crop offset, and the flip."""


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """Crop, flip, scale and normalise images, as `DeviceOptions(transform=…)`; results are identical on every device.

    Random choices depend only on the seed, the epoch and the row, so a resumed run repeats them.
    """

    crop: tuple[int, int] | None = None
    """Height and width of the crop; None keeps the whole image."""
    crop_mode: Literal["random", "center"] = "random"
    """Where to crop: at a random offset for each image, or in the centre."""
    hflip_prob: float = 0.0
    """The probability that an image is flipped horizontally."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """The dtype of the result; None keeps uint8 values and does not scale them."""
    scale: float = 1 / 255
    """The factor applied to values before normalisation."""
    mean: tuple[float, ...] | None = None
    """The mean of each channel, subtracted from the scaled values."""
    std: tuple[float, ...] | None = None
    """The standard deviation of each channel, by which the difference is divided."""
    channels_first: bool = True
    """Whether the shape is (channels, height, width), as most PyTorch models expect, or (height, width, channels)."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """The memory format with `channels_first`; "channels_last" needs no transposition, and suits convolutions."""

    def __post_init__(self) -> None:
        if self.crop is not None and (len(self.crop) != 2 or any(length < 1 for length in self.crop)):
            raise InvalidInputError(f"crop is a height and a width in pixels, not {self.crop!r}")
        if self.crop_mode not in ("random", "center"):
            raise InvalidInputError(f'crop_mode is "random" or "center", not {self.crop_mode!r}')
        if self.memory_format not in ("contiguous", "channels_last"):
            raise InvalidInputError(f'memory_format is "contiguous" or "channels_last", not {self.memory_format!r}')
        if not 0 <= self.hflip_prob <= 1:
            raise InvalidInputError(f"hflip_prob is a probability, not {self.hflip_prob!r}")
        if self.dtype not in (None, "float32", "float16", "bfloat16"):
            raise InvalidInputError(f'dtype is "float32", "float16", "bfloat16" or None, not {self.dtype!r}')
        if self.dtype is None and (self.mean is not None or self.std is not None):
            raise InvalidInputError("uint8 values cannot be normalised: pass a dtype with mean and std")

    @property
    def random(self) -> bool:
        """Whether it needs random values."""
        return self.hflip_prob > 0 or (self.crop is not None and self.crop_mode == "random")

    def __call__(self, images: "torch.Tensor", random_values: npt.NDArray[np.float64] | None) -> "torch.Tensor":
        """Transform images of shape (batch, height, width, channels).

        `random_values` has `RANDOM_VALUES_PER_IMAGE` values in [0, 1) for each image, or is None if `random` is false.
        Raises `InvalidInputError` if the shape does not fit.
        """
        if images.ndim != 4:
            raise InvalidInputError(
                "ImageTransform needs images of one size, of shape (batch, height, width, channels), and not a tensor "
                f"of shape {tuple(images.shape)}; pass image_size to the loader"
            )
        size = self._crop_size(images)
        channels_first = self.channels_first and self.memory_format == "contiguous"
        unchanged = self.crop is None and not self.hflip_prob and self.dtype is None and not channels_first
        if not unchanged:
            cropped = self.crop is not None or self.hflip_prob
            transform = FusedImageTransform(
                size=size,
                crops=self._crops(images, size, random_values) if cropped else None,
                scale=None if self.dtype is None else _channel_scale(self, images.shape[3], images.device),
                dtype=images.dtype if self.dtype is None else _torch_dtype(self.dtype),
                channels_first=channels_first,
            )
            images = transform(images)
        return images.permute(0, 3, 1, 2) if self.channels_first and not channels_first else images

    def _crop_size(self, images: "torch.Tensor") -> tuple[int, int]:
        height, width = images.shape[1:3]
        crop_height, crop_width = self.crop or (height, width)
        if crop_height > height or crop_width > width:
            raise InvalidInputError(f"images of {height} x {width} cannot be cropped to {crop_height} x {crop_width}")
        return crop_height, crop_width

    def _crops(
        self, images: "torch.Tensor", size: tuple[int, int], random_values: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.int32]:
        """The first row, the first column, and 1 if flipped, for each image."""
        margin = np.array(images.shape[1:3]) - size
        crops = np.zeros((len(images), 3), np.int32)
        if random_values is None or self.crop_mode == "center":
            crops[:, :2] = margin // 2
        else:
            crops[:, :2] = random_values[:, :2] * (margin + 1)
        if random_values is not None:
            crops[:, 2] = random_values[:, 2] < self.hflip_prob
        return crops


def _torch_dtype(name: str) -> "torch.dtype":
    import torch  # an optional dependency, and slow to import

    dtype: torch.dtype = getattr(torch, name)
    return dtype


@lru_cache(maxsize=64)
def _channel_scale(
    transform: ImageTransform, channels: int, device: "torch.device"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """The factor and the offset of each channel."""
    import torch  # an optional dependency, and slow to import

    std = np.ones(channels) if transform.std is None else np.asarray(transform.std, np.float64)
    mean = np.zeros(channels) if transform.mean is None else np.asarray(transform.mean, np.float64)
    if len(std) != channels or len(mean) != channels:
        raise InvalidInputError(f"images have {channels} channels, but mean or std has another number of values")
    factor, offset = (transform.scale / std).astype(np.float32), (-mean / std).astype(np.float32)
    factors, offsets = torch.from_numpy(factor).to(device), torch.from_numpy(offset).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams will use the cached tensors
    return factors, offsets
