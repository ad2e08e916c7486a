"""The functions that loaders and limits call: decoders, a random crop by torchvision, a small tokenizer."""

from collections.abc import Callable, Iterable
from functools import cache
from string import ascii_lowercase
from typing import Any

import numpy as np
import simplejpeg
import torch

CROP_SIDE, TOKENS, WORDS = 224, 512, 30_000
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decode_simplejpeg(encoded: Any) -> torch.Tensor:
    """An image as channels, height, width."""
    return torch.from_numpy(simplejpeg.decode_jpeg(encoded)).permute(2, 0, 1)


def decode_torchvision(encoded: Any) -> torch.Tensor:
    """The same by torchvision."""
    from torchvision.io import decode_jpeg

    image: torch.Tensor = decode_jpeg(torch.frombuffer(encoded, dtype=torch.uint8))
    return image


DECODERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "simplejpeg": decode_simplejpeg,
    "torchvision": decode_torchvision,
}


@cache
def _crop() -> Callable[[torch.Tensor], torch.Tensor]:
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(CROP_SIDE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(_MEAN, _STD),
    ]
    made: Callable[[torch.Tensor], torch.Tensor] = v2.Compose(steps)
    return made


def crop(image: torch.Tensor) -> torch.Tensor:
    """A random part of an image, resized, flipped or not, and normalised to float32."""
    return _crop()(image)


def crop_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """The same as `transform` of our loader, whose images are height, width, channels."""
    return sample | {"image": crop(sample["image"].permute(2, 0, 1))}


def tokenize(texts: Iterable[str]) -> torch.Tensor:
    """The words of texts as numbers, cut or padded to one length: one look-up of Python for each word."""
    rows = [[_VOCABULARY.get(word, 0) for word in text.split()[:TOKENS]] for text in texts]
    found = np.zeros((len(rows), TOKENS), np.int32)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return torch.from_numpy(found)


def tokenize_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """The same as `batch_transform` of our loader."""
    return {"tokens": tokenize(batch["text"])}


def word(number: int) -> str:
    """A word of the vocabulary, 3 to 8 letters long."""
    return "".join(ascii_lowercase[number * 7919 // 26**place % 26] for place in range(3 + number % 6))


_VOCABULARY = {word(number): number for number in range(1, WORDS)}
