"""Put the rows of a span together, a column at a time, and decode what is encoded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs import decode_audio, decode_image, decode_images_into, decode_video
from penstock.device import Accelerator, shared_bytes
from penstock.engine._pieces import EncodedRows, Span
from penstock.engine._slab import Layout, Slab
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, Schema, linked_kind
from penstock.format.kinds import Audio, Image, Mask, Values, Video
from penstock.table import Cells, Empty, PickedRows, Reader, Rows, take
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


class Collator:
    """Makes columns of the rows of a span."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        options: DecodeOptions,
        empty: Empty,
        accelerator: Accelerator | None = None,
    ) -> None:
        """An accelerator decodes pictures, if it can."""
        self._reader, self._layout, self._options, self._empty = reader, layout, options, empty
        self._accelerator = accelerator
        self._shared: Callable[[Buffer], Any] = _bytes if accelerator is None else shared_bytes

    def columns(self, span: Span, slab: Slab) -> tuple[Columns, dict[int, Exception]]:
        """All columns of all rows of a span, and the rows that are bad with the reason; their values mean nothing."""
        found: Columns = {}
        bad: dict[int, Exception] = {}
        rows = span.slab_rows if self._layout.fixed else None
        for column in self._layout.fixed:
            assert rows is not None
            places = span.placed.get(column.name)
            found[column.name] = slab.gather(column, rows, self._empty) if places is None else places.values
            if places is not None and not all(piece.placed for piece in span.pieces):
                others = np.array([not piece.placed for piece in span.pieces])[span.which]
                places.values[others] = slab.gather(column, rows[others], self._empty)
            if column.nullable:
                found[f"{column.name}_mask"] = slab.masks[column.name][rows]
        for field in self._layout.loose:
            shape = self._options.picture_shape(field)
            pictures = _encoded(span, field, self._shared) if shape is not None and len(shape) == 3 else None
            if pictures is not None:
                found.update(self._decoded_there(field, pictures) or self._decoded_into(field, pictures, bad))
            else:
                found.update(self._decoded(field, _cells_of(span, field.name), bad))
        return found, bad

    def rows(self, positions: Rows, picked: PickedRows | None = None) -> tuple[Columns, dict[int, Exception]]:
        """The same for any rows of the table, which are read by themselves."""
        rising, first, places = np.unique(positions, return_index=True, return_inverse=True)
        numbers = {} if picked is None or not picked.serves else self._numbers(rising, first, places, picked)
        others = [field for field in self._layout.fields if field.name not in numbers]
        cells = self._reader.cells(others, [rising])[0] if others else {}
        if not np.array_equal(rising, positions):
            cells = {name: column.rearranged(places, self._empty) for name, column in cells.items()}
        found: Columns = {}
        bad: dict[int, Exception] = {}
        for column in self._layout.fixed:
            if column.field is None:
                found[column.name] = self._reader.row_ids(rising)[places]
                continue
            filled = self._reader.values(column.field, numbers.get(column.name) or cells[column.name])
            found[column.name] = filled.values
            if column.nullable:
                there = filled.mask
                found[f"{column.name}_mask"] = np.ones(len(positions), bool) if there is None else there
        for field in self._layout.loose:
            found.update(self._decoded(field, cells[field.name], bad))
        return found, bad

    def _numbers(self, rising: Rows, first: Rows, places: Rows, picked: PickedRows) -> dict[str, Cells]:
        """The columns that can be had without reading whole pages: rows as they were asked for, maybe repeated."""
        wanted = self._reader.wanted(rising)
        again = np.flatnonzero(first[places] != np.arange(len(places)))
        found = {}
        with self._reader.explained():
            for column in self._layout.fixed:
                if column.field is None:
                    continue
                values = picked.numbers(column.field, wanted, first, len(places), self._empty)
                if values is not None:
                    values[again] = values[first[places[again]]]
                    found[column.name] = Cells(values, ())
        return found

    def row(self, position: int) -> Columns:
        """One row; raises if it is bad."""
        found, bad = self.rows(np.array([position]))
        for error in bad.values():
            raise error
        return found

    def _decoded(self, field: Field, cells: Cells, bad: dict[int, Exception]) -> Columns:
        kind, choice = linked_kind(field.kind), self._options.decoder(field)
        if not isinstance(kind, Image | Audio) and not callable(choice):
            return self._plain(field, cells, bad)
        encoded = self._reader.resolved(field, _array(cells), cells)
        if choice is False:
            return {field.name: encoded.to_pylist()}
        if isinstance(kind, Image) and choice is True:
            return self._pictures(field, encoded, bad)
        decoder: Callable[[bytes], Any] = choice if callable(choice) else _sound_or_film(kind)
        return {field.name: _each(encoded, decoder, field.name, bad)}

    def _plain(self, field: Field, cells: Cells, bad: dict[int, Exception]) -> Columns:
        try:
            filled = self._reader.values(field, cells)
        except SampleError:
            return {field.name: self._one_by_one(field, cells, bad)}
        found: Columns = {field.name: filled.values}
        if filled.mask is not None:
            found[f"{field.name}_mask"] = filled.mask
        return found

    def _one_by_one(self, field: Field, cells: Cells, bad: dict[int, Exception]) -> list[Any]:
        """Values of which at least one is bad."""
        found: list[Any] = []
        assert cells.array is not None
        for row in range(len(cells.array)):
            try:
                found.append(self._reader.values(field, cells.row(row)).item(0))
            except SampleError as error:
                bad.setdefault(row, error)
                found.append(None)
        return found

    def _pictures(self, field: Field, encoded: pa.Array, bad: dict[int, Exception]) -> Columns:
        shape = self._options.picture_shape(field)
        if shape is None:
            return {field.name: _each(encoded, decode_image, field.name, bad)}
        if len(shape) == 3 or self._options.resizes(field):
            rows = _where([encoded], self._shared)
            return self._decoded_into(field, [rows.row(index) for index in range(len(encoded))], bad)
        # One channel may have 16 bits, and only the picture knows.
        pictures = _each(encoded, partial(_shaped, shape), field.name, bad)
        kinds = {picture.dtype for picture in pictures if picture is not None}
        out = self._empty((len(encoded), *shape), np.result_type(np.uint8, *kinds))
        for row, picture in enumerate(pictures):
            out[row] = 0 if picture is None else picture
        return _with_mask(field, out, lambda: np.asarray(encoded.is_valid()))

    def _decoded_into(self, field: Field, pictures: Sequence[Any], bad: dict[int, Exception]) -> Columns:
        """Pictures of one shape, each decoded into its place in the batch."""
        if self._accelerator is not None:
            pictures = [None if picture is None else picture.data for picture in pictures]
        shape = self._options.picture_shape(field)
        assert shape is not None
        resize = self._options.resizes(field)
        out = self._empty((len(pictures), *shape), np.uint8)
        for row, error in decode_images_into(pictures, out, resize=resize).items():
            bad.setdefault(row, SampleError(f"column {field.name!r}: {error}"))
        return _with_mask(field, out, lambda: _present(pictures))

    def _decoded_there(self, field: Field, pictures: Sequence[Any]) -> Columns:
        """The same by the accelerator; nothing where it cannot, or not these pictures."""
        shape = self._options.picture_shape(field)
        if self._accelerator is None or shape is None:
            return {}
        resize = self._options.resizes(field)
        with self._accelerator.working():
            decoded = self._accelerator.decode_jpegs(pictures, shape, resize=resize)
        return {} if decoded is None else _with_mask(field, decoded, lambda: _present(pictures))


def _present(values: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.array([value is not None for value in values], bool)


def _with_mask(field: Field, values: Any, there: Callable[[], npt.NDArray[np.bool_]]) -> Columns:
    return {field.name: values, f"{field.name}_mask": there()} if field.nullable else {field.name: values}


def _shaped(shape: tuple[int, ...], data: bytes) -> npt.NDArray[Any]:
    picture = decode_image(data)
    if picture.shape != shape:
        raise SampleError(f"a picture has shape {picture.shape}, not the column's {shape}")
    return picture


def pad(values: Sequence[Any], empty: npt.NDArray[Any] | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Arrays of different shapes as one, filled up with zeros, and the shape of each; `empty` is there for none."""
    arrays = [np.asarray(value) for value in values if value is not None]
    if not arrays:
        nothing = np.zeros(0) if empty is None else empty
        return np.zeros((len(values), *nothing.shape), nothing.dtype), np.zeros((len(values), nothing.ndim), np.int64)
    dimensions = max(array.ndim for array in arrays)
    if any(array.ndim != dimensions for array in arrays):
        raise InvalidInputError("values with different numbers of dimensions cannot be padded; ask for lists")
    shapes = np.zeros((len(values), dimensions), np.int64)
    for row, value in enumerate(values):
        if value is not None:
            shapes[row] = np.shape(value)
    out = np.zeros((len(values), *shapes.max(axis=0).tolist()), np.result_type(*{array.dtype for array in arrays}))
    for row, value in enumerate(values):
        if value is not None:
            inside: tuple[slice, ...] = tuple(slice(length) for length in shapes[row].tolist())
            out[row][inside] = value
    return out, shapes


def _array(cells: Cells) -> pa.Array:
    assert cells.array is not None
    return cells.array


def _cells_of(span: Span, name: str) -> Cells:
    """A column of a span's rows that is not in the slab."""
    order = np.argsort(span.which, kind="stable")
    ordered, rows = span.which[order], span.rows[order]
    bounds = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
    arrays: list[pa.Array] = []
    references: list[pa.Array | None] = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        cells = span.pieces[int(ordered[first])].cells[name]
        assert cells.array is not None
        arrays.append(take(cells.array, rows[first:end]))
        references.append(None if cells.references is None else take(cells.references, rows[first:end]))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    array = take(pa.concat_arrays(arrays), back)
    if all(part is None for part in references):
        return Cells(None, (array,))
    kind = next(part.type for part in references if part is not None)
    whole = [
        pa.nulls(len(values), kind) if part is None else part for values, part in zip(arrays, references, strict=True)
    ]
    return Cells(None, (array,), take(pa.concat_arrays(whole), back))


def _encoded(span: Span, field: Field, shared: Callable[[Buffer], Any]) -> list[Any] | None:
    """The encoded bytes of each row where they are in the window; None where some are blobs or links."""
    by_piece: list[EncodedRows] = []
    for piece in span.pieces:
        found = piece.encoded.get(field.name)
        if found is None:
            cells = piece.cells[field.name]
            if cells.references is not None or pa.types.is_struct(cells.parts[0].type):
                return None
            found = piece.encoded[field.name] = _where(cells.parts, shared)
        by_piece.append(found)
    return [by_piece[number].row(row) for number, row in zip(span.which.tolist(), span.rows.tolist(), strict=True)]


def _where(parts: Sequence[pa.Array], shared: Callable[[Buffer], Any]) -> EncodedRows:
    """Where each row of some arrays of bytes is."""
    found = EncodedRows([], [], [])
    for part in parts:
        width = np.dtype(np.int64 if part.type == pa.large_binary() else np.int32)
        _, offsets_buffer, data = part.buffers()
        offsets = np.frombuffer(offsets_buffer, width, len(part) + 1, part.offset * width.itemsize).tolist()
        memory: list[Any] = [shared(data or b"")] * len(part)
        if part.null_count:
            for row in np.flatnonzero(~np.asarray(part.is_valid())).tolist():
                memory[row] = None
        found.memory.extend(memory)
        found.starts.extend(offsets[:-1])
        found.ends.extend(offsets[1:])
    return found


def _bytes(data: Buffer) -> memoryview:
    """Arrow's buffers say that they are signed, and decoders refuse that."""
    return memoryview(data).cast("B")


def _each(encoded: pa.Array, decode: Callable[[Any], Any], name: str, bad: dict[int, Exception]) -> list[Any]:
    found: list[Any] = []
    for row, data in enumerate(encoded.to_pylist()):
        try:
            found.append(None if data is None else decode(data))
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


def split(columns: Mapping[str, Values], lengths: Sequence[int]) -> list[Columns]:
    """Columns of many rows as batches of so many."""
    if len(lengths) == 1:
        return [dict(columns)]
    batches: list[Columns] = []
    start = 0
    for length in lengths:
        batches.append({name: values[start : start + length] for name, values in columns.items()})
        start += length
    return batches


def put_row(columns: Columns, index: int, row: Columns, accelerator: Accelerator | None = None) -> None:
    """Write one row over another."""
    for name, values in columns.items():
        one = row[name]
        if accelerator is not None and not isinstance(values, np.ndarray | list):
            with accelerator.working():
                accelerator.put(np.array(one[0]), values[index])
            continue
        if isinstance(values, np.ndarray) and isinstance(one, np.ndarray) and one.dtype != values.dtype:
            values = columns[name] = values.astype(np.result_type(values, one))  # gray of 8 and of 16 bits
        values[index] = one[0]
