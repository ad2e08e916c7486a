"""Decode encoded columns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.codecs import decode_audio, decode_image, decode_images, decode_video
from penstock.device import Accelerator, Allocator
from penstock.engine._options import DecodeOptions
from penstock.errors import SampleError, text_of
from penstock.format import Field, value_kind
from penstock.format.kinds import Image, Values, Video
from penstock.types import Buffer

Columns = dict[str, Values]


def decode_column(
    field: Field,
    encoded: Sequence[Any],
    options: DecodeOptions,
    bad: dict[int, Exception],
    *,
    empty: Allocator,
    empty_any_shape: Allocator | None,
    accelerator: Accelerator | None,
) -> Columns:
    """Decode a column, on the accelerator if it can; adds the errors of bad rows to `bad`, whose values are undefined.

    `empty_any_shape` allocates images whose shape varies.
    """
    shape, resize = options.image_shape(field), options.resizes(field)
    if accelerator is not None:
        if shape is not None:
            with accelerator.on_stream():
                decoded = accelerator.decode_jpegs(encoded, shape, resize=resize)
            if decoded is not None:
                return with_mask(field, decoded, encoded)
        encoded = [None if image is None else image.data for image in encoded]
    if shape is not None:
        out, errors = decode_images(encoded, shape, resize=resize, empty=empty)
        for row, error in errors.items():
            bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
        return with_mask(field, out, encoded)
    choice, kind = options.decoder(field), value_kind(field.kind)
    if callable(choice):
        decode = choice
    elif isinstance(kind, Image):
        decode = partial(decode_image, empty=empty_any_shape)
    else:
        decode_media = decode_video if isinstance(kind, Video) else decode_audio
        decode = lambda data: decode_media(data)[0]  # noqa: E731
    return {field.name: _each(encoded, decode, field.name, bad)}


def with_mask(field: Field, values: Any, encoded: Sequence[Any]) -> Columns:
    """A column, and its validity mask if it is nullable."""
    if not field.nullable:
        return {field.name: values}
    return {field.name: values, f"{field.name}_mask": np.array([value is not None for value in encoded], bool)}


def _each(
    encoded: Sequence[Buffer | None], decode: Callable[[bytes], Any], name: str, bad: dict[int, Exception]
) -> list[Any]:
    decoded: list[Any] = []
    for row, data in enumerate(encoded):
        try:
            decoded.append(None if data is None else decode(bytes(data)))
        except Exception as error:  # a user's decoder may raise anything
            bad.setdefault(row, SampleError(f"column {name!r}: {text_of(error)}"))
            bad[row].__cause__ = error
            decoded.append(None)
    return decoded
