"""Encoded columns become values: here, or in another process, to which this can be sent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs import decode_audio, decode_image, decode_images_into, decode_video
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, Schema, linked_kind
from penstock.format.kinds import Audio, Image, Mask, Values, Video
from penstock.table import Empty
from penstock.types import Buffer

Decoder = Callable[[bytes], Any]
Columns = dict[str, Values]


@dataclass(frozen=True)
class DecodeOptions:
    """How encoded columns become values."""

    decode: bool | Mapping[str, bool | Decoder] = True
    """Whether media are decoded, or for each column whether, or by what function of the bytes."""
    image_size: tuple[int, int] | None = None
    """Height and width that pictures are scaled to; None leaves them as they are."""

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and (len(size) != 2 or any(not isinstance(length, int) or length < 1 for length in size)):
            raise InvalidInputError(f"image_size is a height and a width in pixels, not {size!r}")

    def check(self, schema: Schema) -> None:
        """Refuse what no column is there for."""
        for name in () if isinstance(self.decode, bool) else self.decode:
            self.decoder(schema[name])

    def decoder(self, field: Field) -> "bool | Decoder":
        """What is done with one column."""
        choice = self.decode if isinstance(self.decode, bool) else self.decode.get(field.name, True)
        if callable(choice) and linked_kind(field.kind).arrow_type != pa.binary():
            raise InvalidInputError(f"column {field.name!r} holds {field.kind} and no bytes that could be decoded")
        return choice

    def decodes(self, field: Field) -> bool:
        """Whether a column is encoded, and not to be left so."""
        choice = self.decoder(field)
        return callable(choice) or (choice and isinstance(linked_kind(field.kind), Image | Audio))

    def resizes(self, field: Field) -> bool:
        """Whether a column's pictures are scaled; numbers of classes cannot be."""
        return self.image_size is not None and not isinstance(linked_kind(field.kind), Mask)

    def picture_shape(self, field: Field) -> tuple[int, ...] | None:
        """The one shape that a column's pictures have when decoded; None where it is not one, or they are not."""
        kind = linked_kind(field.kind)
        if not isinstance(kind, Image) or self.decoder(field) is not True:
            return None
        if self.image_size is not None and self.resizes(field):
            return (*self.image_size, *(kind.shape[2:] if kind.shape else (3,)))
        return kind.shape


class Decoding:
    """Decodes some columns, a batch at a time."""

    def __init__(self, options: DecodeOptions, fields: Sequence[Field]) -> None:
        """Of the fields, it decodes those that are encoded and are not to be left so."""
        self._options = options
        self.fields = {field.name: field for field in fields if options.decodes(field)}

    def column(
        self, field: Field, encoded: Sequence[Buffer | None], empty: Empty, bad: dict[int, Exception]
    ) -> Columns:
        """The values of a column; adds to `bad` the rows that are, with the reason: their values mean nothing."""
        kind, choice = linked_kind(field.kind), self._options.decoder(field)
        if callable(choice):
            return {field.name: _each(encoded, choice, field.name, bad)}
        if not isinstance(kind, Image):
            return {field.name: _each(encoded, _sound_or_film(kind), field.name, bad)}
        shape, resize = self._options.picture_shape(field), self._options.resizes(field)
        if shape is None:
            return {field.name: _each(encoded, decode_image, field.name, bad)}
        if len(shape) == 3 or resize:
            out = empty((len(encoded), *shape), np.uint8)
            for row, error in decode_images_into(encoded, out, resize=resize).items():
                bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
        else:  # one channel may have 16 bits, and only the picture knows
            pictures = _each(encoded, partial(_shaped, shape), field.name, bad)
            kinds = {picture.dtype for picture in pictures if picture is not None}
            out = empty((len(encoded), *shape), np.result_type(np.uint8, *kinds))
            for row, picture in enumerate(pictures):
                out[row] = 0 if picture is None else picture
        return with_mask(field, out, encoded)

    def columns(self, columns: Columns, empty: Empty) -> tuple[Columns, dict[int, Exception]]:
        """All columns of a batch of which these are encoded, and the rows that are bad with the reason."""
        found: Columns = {}
        bad: dict[int, Exception] = {}
        for name, values in columns.items():
            field = self.fields.get(name)
            found.update({name: values} if field is None else self.column(field, list(values), empty, bad))
        return found, bad


def with_mask(field: Field, values: Any, encoded: Sequence[Any]) -> Columns:
    """A column, and if it is nullable which of its rows have a value."""
    if not field.nullable:
        return {field.name: values}
    return {field.name: values, f"{field.name}_mask": np.array([value is not None for value in encoded], bool)}


def _shaped(shape: tuple[int, ...], data: bytes) -> npt.NDArray[Any]:
    picture = decode_image(data)
    if picture.shape != shape:
        raise SampleError(f"a picture has shape {picture.shape}, not the column's {shape}")
    return picture


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


def _sound_or_film(kind: Any) -> Decoder:
    if isinstance(kind, Video):
        return lambda data: decode_video(data)[0]
    assert isinstance(kind, Audio)
    return lambda data: decode_audio(data)[0]
