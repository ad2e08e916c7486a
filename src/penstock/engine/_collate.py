"""Put the rows of a span together, a column at a time, and decode what is encoded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Accelerator, shared_bytes
from penstock.engine._decode import Columns, DecodeOptions, Decoding, with_mask
from penstock.engine._pieces import EncodedRows, Span
from penstock.engine._slab import Layout, Slab
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, linked_kind
from penstock.format.kinds import Audio, Image, Values
from penstock.table import Cells, Empty, PickedRows, Reader, Rows, take
from penstock.types import Buffer


class Collator:
    """Makes columns of the rows of a span."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        options: DecodeOptions,
        empty: Empty,
        accelerator: Accelerator | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """An accelerator decodes pictures, if it can; with `apart`, another process decodes what is encoded."""
        self._reader, self._layout, self._options, self._empty = reader, layout, options, empty
        self._accelerator, self._apart = accelerator, apart
        self._decoding = Decoding(options, layout.loose)
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
            if pictures is None:
                found.update(self._loose(field, _cells_of(span, field.name), bad))
                continue
            there = self._decoded_there(field, pictures)
            if not there and self._accelerator is not None:
                pictures = [None if picture is None else picture.data for picture in pictures]
            found.update(there or self._decoded(field, pictures, bad))
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
            found.update(self._loose(field, cells[field.name], bad))
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
        """One row; raises if it is bad, also where another process decodes it."""
        found, bad = self.rows(np.array([position]))
        if self._apart:
            bad |= self._decoding.columns(found, np.empty)[1]
        for error in bad.values():
            raise error
        return found

    def _loose(self, field: Field, cells: Cells, bad: dict[int, Exception]) -> Columns:
        decoded = field.name in self._decoding.fields
        if not decoded and not isinstance(linked_kind(field.kind), Image | Audio):
            return self._plain(field, cells, bad)
        assert cells.array is not None
        encoded = self._reader.resolved(field, cells.array, cells)
        if not decoded:
            return {field.name: encoded.to_pylist()}
        rows = _where([encoded], _bytes)
        return self._decoded(field, [rows.row(index) for index in range(len(encoded))], bad)

    def _decoded(self, field: Field, encoded: list[Any], bad: dict[int, Exception]) -> Columns:
        """The values of an encoded column, if it is for this process to decode it."""
        return {field.name: encoded} if self._apart else self._decoding.column(field, encoded, self._empty, bad)

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

    def _decoded_there(self, field: Field, pictures: Sequence[Any]) -> Columns:
        """The same by the accelerator; nothing where it cannot, or not these pictures."""
        shape = self._options.picture_shape(field)
        if self._accelerator is None or shape is None:
            return {}
        resize = self._options.resizes(field)
        with self._accelerator.working():
            decoded = self._accelerator.decode_jpegs(pictures, shape, resize=resize)
        return {} if decoded is None else with_mask(field, decoded, pictures)


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
