"""Decode encoded columns, in this process or, pickled, in a worker process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs import decode_audio, decode_image, decode_images_into, decode_video
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, Schema, value_kind
from penstock.format.kinds import Audio, Image, Mask, Values, Video
from penstock.table import Allocator
from penstock.types import Buffer

Decoder = Callable[[bytes], Any]
Columns = dict[str, Values]


@dataclass(frozen=True)
class DecodeOptions:
    """How encoded columns are decoded."""

    decode: bool | Mapping[str, bool | Decoder] = True
    """Whether media are decoded; or, by column, whether, or a function of the encoded bytes."""
    image_size: tuple[int, int] | None = None
    """Height and width that images are resized to; None leaves them as stored."""

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and (len(size) != 2 or any(not isinstance(length, int) or length < 1 for length in size)):
            raise InvalidInputError(f"image_size is a height and a width in pixels, not {size!r}")

    def check(self, schema: Schema) -> None:
        """Raise `NotFoundError` for unknown columns and `InvalidInputError` for columns without encoded bytes."""
        for name in () if isinstance(self.decode, bool) else self.decode:
            self.decoder(schema[name])

    def decoder(self, field: Field) -> "bool | Decoder":
        """The choice for one column; raises `InvalidInputError` for a function if the column holds no bytes."""
        choice = self.decode if isinstance(self.decode, bool) else self.decode.get(field.name, True)
        if callable(choice) and value_kind(field.kind).arrow_type != pa.binary():
            raise InvalidInputError(f"column {field.name!r} holds {field.kind} and no bytes that could be decoded")
        return choice

    def decodes(self, field: Field) -> bool:
        """Whether a column is encoded and gets decoded."""
        choice = self.decoder(field)
        return callable(choice) or (choice and isinstance(value_kind(field.kind), Image | Audio))

    def resizes(self, field: Field) -> bool:
        """Whether a column's images are resized; masks of class indices are not."""
        return self.image_size is not None and not isinstance(value_kind(field.kind), Mask)

    def image_shape(self, field: Field) -> tuple[int, ...] | None:
        """The fixed shape of a column's decoded images; None if it varies, or they are not decoded."""
        kind = value_kind(field.kind)
        if not isinstance(kind, Image) or self.decoder(field) is not True:
            return None
        if self.image_size is not None and self.resizes(field):
            return (*self.image_size, *(kind.shape[2:] if kind.shape else (3,)))
        return kind.shape


class ColumnDecoder:
    """Decodes columns, a batch at a time."""

    def __init__(self, options: DecodeOptions, fields: Sequence[Field]) -> None:
        """Decodes those of the fields that are encoded and selected for decoding."""
        self._options = options
        self.fields = {field.name: field for field in fields if options.decodes(field)}

    def column(
        self, field: Field, encoded: Sequence[Buffer | None], empty: Allocator, bad: dict[int, Exception]
    ) -> Columns:
        """Decode a column; adds the errors of bad rows to `bad`, whose values are then undefined."""
        kind, choice = value_kind(field.kind), self._options.decoder(field)
        if callable(choice):
            return {field.name: _each(encoded, choice, field.name, bad)}
        if not isinstance(kind, Image):
            return {field.name: _each(encoded, _audio_or_video_decoder(kind), field.name, bad)}
        shape, resize = self._options.image_shape(field), self._options.resizes(field)
        if shape is None:
            return {field.name: _each(encoded, decode_image, field.name, bad)}
        if len(shape) == 3 or resize:
            out = empty((len(encoded), *shape), np.uint8)
            for row, error in decode_images_into(encoded, out, resize=resize).items():
                bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
        else:  # grayscale may be 8 or 16 bits, which only the image says
            images = _each(encoded, partial(_shaped, shape), field.name, bad)
            kinds = {image.dtype for image in images if image is not None}
            out = empty((len(encoded), *shape), np.result_type(np.uint8, *kinds))
            for row, image in enumerate(images):
                out[row] = 0 if image is None else image
        return with_mask(field, out, encoded)

    def columns(self, columns: Columns, empty: Allocator) -> tuple[Columns, dict[int, Exception]]:
        """Decode the encoded columns of a batch; returns all columns, and the errors of bad rows."""
        found: Columns = {}
        bad: dict[int, Exception] = {}
        for name, values in columns.items():
            field = self.fields.get(name)
            found.update({name: values} if field is None else self.column(field, list(values), empty, bad))
        return found, bad


def with_mask(field: Field, values: Any, encoded: Sequence[Any]) -> Columns:
    """A column, and its validity mask if it is nullable."""
    if not field.nullable:
        return {field.name: values}
    return {field.name: values, f"{field.name}_mask": np.array([value is not None for value in encoded], bool)}


def _shaped(shape: tuple[int, ...], data: bytes) -> npt.NDArray[Any]:
    image = decode_image(data)
    if image.shape != shape:
        raise SampleError(f"an image has shape {image.shape}, not the column's {shape}")
    return image


def _each(
    encoded: Sequence[Buffer | None], decode: Callable[[bytes], Any], name: str, bad: dict[int, Exception]
) -> list[Any]:
    found: list[Any] = []
    for row, data in enumerate(encoded):
        try:
            found.append(None if data is None else decode(bytes(data)))
        except Exception as error:  # a user's decoder may raise anything
            bad.setdefault(row, SampleError(f"column {name!r}: {error}"))
            bad[row].__cause__ = error
            found.append(None)
    return found


def _audio_or_video_decoder(kind: Any) -> Decoder:
    if isinstance(kind, Video):
        return lambda data: decode_video(data)[0]
    assert isinstance(kind, Audio)
    return lambda data: decode_audio(data)[0]
