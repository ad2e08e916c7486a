"""Decode encoded columns, in this process or, pickled, in a worker process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codecs import decode_audio, decode_image, decode_images, decode_video
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, Schema, value_kind
from penstock.format.kinds import Audio, Image, List, Mask, Values, Video
from penstock.table import Allocator
from penstock.types import Buffer

Decoder = Callable[[bytes], Any]
Columns = dict[str, Values]


@dataclass(frozen=True)
class DecodeOptions:
    """How encoded columns are decoded."""

    decode: bool | Mapping[str, bool | Decoder] = True
    """Whether media are decoded; or, by column, whether, or a function of the encoded bytes."""
    image_size: int | tuple[int, int] | None = None
    """Height and width that images are resized to, or one number for both; None leaves them as stored."""

    def __post_init__(self) -> None:
        size: Any = self.image_size
        if size is None:
            return
        sizes = (size, size) if isinstance(size, Integral) else size
        if not isinstance(sizes, Sequence) or len(sizes) != 2 or any(not _is_length(length) for length in sizes):
            raise InvalidInputError(
                f"image_size is a height and a width in pixels, or one number for both, not {size!r}"
            )
        object.__setattr__(self, "image_size", (int(sizes[0]), int(sizes[1])))

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

    def leaves_encoded(self, field: Field) -> bool:
        """Whether a column's media, also in lists, are delivered as they are stored."""
        kind = value_kind(field.kind)
        while isinstance(kind, List):
            kind = kind.of
        return isinstance(kind, Image | Audio) and self.decoder(field) is False

    def resizes(self, field: Field) -> bool:
        """Whether a column's images are resized; masks of class indices are not."""
        return self.image_size is not None and not isinstance(value_kind(field.kind), Mask)

    def image_shape(self, field: Field) -> tuple[int, ...] | None:
        """The fixed shape of a column's decoded images; None if it varies, or they are not decoded."""
        kind = value_kind(field.kind)
        if not isinstance(kind, Image) or self.decoder(field) is not True:
            return None
        if self.image_size is not None and self.resizes(field):
            assert isinstance(self.image_size, tuple)
            return (*self.image_size, *(kind.shape[2:] if kind.shape and not kind.inferred else (3,)))
        return kind.shape


def _is_length(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


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
        out, errors = decode_images(encoded, shape, resize=resize, empty=empty)
        for row, error in errors.items():
            bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
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
