"""Decode encoded columns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.codecs import decode_audio, decode_image, decode_images, decode_video
from penstock.device import Allocator
from penstock.engine._options import DecodeOptions, Decoder
from penstock.errors import SampleError, text_of
from penstock.format import Field, value_kind
from penstock.format.kinds import Image, Kind, Values, Video
from penstock.types import Buffer

Columns = dict[str, Values]


class ColumnDecoder:
    """Decodes columns, a batch at a time."""

    def __init__(self, options: DecodeOptions, fields: Sequence[Field]) -> None:
        """Decodes those of the fields that are encoded and selected for decoding."""
        self._options = options
        self.empty: Allocator | None = None
        """Memory for images of any shape: what is decoded to where the loop reads it need not be copied there."""
        self.fields = {field.name: field for field in fields if options.decodes(field)}

    def column(
        self, field: Field, encoded: Sequence[Buffer | None], empty: Allocator, bad: dict[int, Exception]
    ) -> Columns:
        """Decode a column; adds the errors of bad rows to `bad`, whose values are then undefined."""
        shape = self._options.image_shape(field)
        if shape is None:
            choice = self._options.decoder(field)
            decode = choice if callable(choice) else self._decoder_of(value_kind(field.kind))
            return {field.name: _each(encoded, decode, field.name, bad)}
        out, errors = decode_images(encoded, shape, resize=self._options.resizes(field), empty=empty)
        for row, error in errors.items():
            bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
        return with_mask(field, out, encoded)

    def _decoder_of(self, kind: Kind) -> Decoder:
        if isinstance(kind, Image):
            return partial(decode_image, empty=self.empty)
        return lambda data: (decode_video if isinstance(kind, Video) else decode_audio)(data)[0]


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
