"""Collate the rows of a span column by column, and decode encoded columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Accelerator, writable_view
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._decode import ColumnDecoder, Columns, with_mask
from penstock.engine.planning import FixedColumn, Layout, Span
from penstock.engine.window import EncodedRows, Window, WindowBlock
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor, Values
from penstock.table import Allocator, Int64Array, RandomRowReader, RawColumn, Reader, take
from penstock.types import Buffer

Allocators = Callable[[str], Allocator]
"""Allocates the values of a column, given its name."""
BadRows = dict[int, Exception]
"""The errors of bad rows, by index."""


class WindowRows(NamedTuple):
    """Rows in the window."""

    blocks: Sequence[WindowBlock]
    block_index: Int64Array
    """For each row the index of its block."""
    rows: Int64Array
    """For each row its index in that block."""
    slab_rows: Int64Array
    """For each row its index in the slab."""

    @classmethod
    def of(cls, span: Span, window: Window) -> "WindowRows":
        """All rows of a span, in order."""
        starts = window.slab_starts(span)
        return cls(window.blocks(span), span.block_index, span.rows, starts[span.block_index] + span.rows)

    def take(self, indices: Int64Array) -> "WindowRows":
        """Some of the rows."""
        return WindowRows(self.blocks, self.block_index[indices], self.rows[indices], self.slab_rows[indices])

    def encoded(self, name: str, view: Callable[[Buffer], Any]) -> list[Any] | None:
        """The bytes of each value of a column; None if some are blobs or links."""
        by_block: dict[int, EncodedRows] = {}
        for number in np.flatnonzero(np.bincount(self.block_index)).tolist():
            found = self.blocks[number].encoded_rows(name, view)
            if found is None:
                return None
            by_block[number] = found
        places = zip(self.block_index.tolist(), self.rows.tolist(), strict=True)
        return [by_block[number].row(row) for number, row in places]

    def raw_column(self, name: str) -> RawColumn:
        """A column of variable size."""
        order = np.argsort(self.block_index, kind="stable")
        ordered, rows = self.block_index[order], self.rows[order]
        bounds = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
        arrays: list[pa.Array] = []
        references: list[pa.Array | None] = []
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            cells = self.blocks[int(ordered[first])].raw_columns[name]
            assert cells.array is not None
            arrays.append(take(cells.array, rows[first:end]))
            references.append(None if cells.references is None else take(cells.references, rows[first:end]))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        array = take(pa.concat_arrays(arrays), back)
        if all(part is None for part in references):
            return RawColumn(None, (array,))
        kind = next(part.type for part in references if part is not None)
        whole = [
            pa.nulls(len(values), kind) if part is None else part
            for values, part in zip(arrays, references, strict=True)
        ]
        return RawColumn(None, (array,), take(pa.concat_arrays(whole), back))


class Collator:
    """Collates rows into columns."""

    def __init__(
        self, reader: Reader, layout: Layout, options: DecodeOptions, accelerator: Accelerator | None = None
    ) -> None:
        """The accelerator decodes images if it can."""
        self._reader, self._layout, self._options, self._accelerator = reader, layout, options, accelerator
        self._decoder = ColumnDecoder(options, layout.variable)
        self._view: Callable[[Buffer], Any] = as_bytes if accelerator is None else writable_view

    def columns(self, span: Span, window: Window, empty: Allocators) -> tuple[Columns, BadRows]:
        """All columns of a span, and the errors of bad rows by index; the values of bad rows are undefined."""
        found: dict[str, Any] = {}
        bad: BadRows = {}
        located = WindowRows.of(span, window)
        for column in self._layout.fixed:
            preallocated = window.preallocated(span, column.name)
            if preallocated is None:
                found.update(self.fixed(column, located, window, empty(column.name)))
                continue
            found[column.name] = preallocated.values
            if not all(block.into_batch for block in located.blocks):
                others = np.array([not block.into_batch for block in located.blocks])[span.block_index]
                preallocated.values[others] = window.slab.gather(column, located.slab_rows[others], np.empty)
            if column.nullable:
                found[f"{column.name}_mask"] = window.slab.masks[column.name][located.slab_rows]
        for field in self._layout.variable:
            found.update(self.variable(field, located, empty(field.name), bad))
        return found, bad

    @staticmethod
    def fixed(column: FixedColumn, located: WindowRows, window: Window, empty: Allocator) -> Columns:
        """A column of a fixed shape from the slab, and its mask."""
        found: Columns = {column.name: window.slab.gather(column, located.slab_rows, empty)}
        if column.nullable:
            found[f"{column.name}_mask"] = window.slab.masks[column.name][located.slab_rows]
        return found

    def variable(self, field: Field, located: WindowRows, empty: Allocator, bad: BadRows) -> Columns:
        """A column of variable size from the window, decoded; adds the errors of bad rows to `bad`."""
        shape = self._options.image_shape(field)
        images = located.encoded(field.name, self._view) if shape is not None and len(shape) == 3 else None
        if images is None:
            return self._variable(field, located.raw_column(field.name), empty, bad)
        there = self._decode_on_device(field, images)
        if not there and self._accelerator is not None:
            images = [None if image is None else image.data for image in images]
        return there or self._decoder.column(field, images, empty, bad)

    def rows(self, positions: Int64Array, random_reader: RandomRowReader | None = None) -> tuple[Columns, BadRows]:
        """The same for any positions, read on demand."""
        rising, first, places = np.unique(positions, return_index=True, return_inverse=True)
        numbers = (
            {}
            if random_reader is None or not random_reader.is_local
            else self._fixed_width(rising, first, places, random_reader)
        )
        others = [field for field in self._layout.fields if field.name not in numbers]
        cache = None if random_reader is None else random_reader.cache
        cells = self._reader.raw_columns(others, [rising], cache=cache)[0] if others else {}
        if not np.array_equal(rising, positions):
            cells = {name: column.take(places, np.empty) for name, column in cells.items()}
        found: Columns = {}
        bad: BadRows = {}
        for column in self._layout.fixed:
            if column.field is None:
                found[column.name] = self._reader.row_ids(rising)[places]
                continue
            filled = self._reader.decode(column.field, numbers.get(column.name) or cells[column.name])
            found[column.name] = filled.values
            if column.nullable:
                there = filled.mask
                found[f"{column.name}_mask"] = np.ones(len(positions), bool) if there is None else there
        for field in self._layout.variable:
            found.update(self._variable(field, cells[field.name], np.empty, bad))
        return found, bad

    def _fixed_width(
        self, rising: Int64Array, first: Int64Array, places: Int64Array, random_reader: RandomRowReader
    ) -> dict[str, RawColumn]:
        """Fixed-width columns that are read without whole pages, in the requested order, repeats included."""
        wanted = self._reader.locate(rising)
        again = np.flatnonzero(first[places] != np.arange(len(places)))
        found = {}
        with self._reader.missing_as_corrupt():
            for column in self._layout.fixed:
                if column.field is None:
                    continue
                values = random_reader.read(column.field, wanted, first, len(places), np.empty)
                if values is not None:
                    values[again] = values[first[places[again]]]
                    found[column.name] = RawColumn(values, ())
        return found

    def row(self, position: int) -> Columns:
        """One row, decoded; raises its error if it is bad."""
        found, bad = self.rows(np.array([position]))
        for error in bad.values():
            raise error
        return found

    def _variable(self, field: Field, cells: RawColumn, empty: Allocator, bad: BadRows) -> Columns:
        decoded = field.name in self._decoder.fields
        if not decoded and not self._options.leaves_encoded(field):
            return self._values(field, cells, bad)
        assert cells.array is not None
        encoded = self._reader.load_external(field, cells)
        if not decoded:
            return {field.name: encoded.to_pylist()}
        rows = EncodedRows.of([encoded], as_bytes)
        return self._decoder.column(field, [rows.row(index) for index in range(len(encoded))], empty, bad)

    def _values(self, field: Field, cells: RawColumn, bad: BadRows) -> Columns:
        try:
            filled = self._reader.decode(field, cells)
            values, mask = filled.values, filled.mask
        except SampleError:
            values, mask = self._values_by_row(field, cells, bad), None
        found: Columns = {field.name: values}
        if field.nullable and isinstance(value_kind(field.kind), Tensor) and mask is None:  # ragged: a list
            mask = np.array([value is not None for value in values], bool)
        if mask is not None:
            found[f"{field.name}_mask"] = mask
        return found

    def _values_by_row(self, field: Field, cells: RawColumn, bad: BadRows) -> list[Any]:
        """Values one by one, if at least one is bad."""
        found: list[Any] = []
        assert cells.array is not None
        for row in range(len(cells.array)):
            try:
                found.append(self._reader.decode(field, cells.row(row)).item(0))
            except SampleError as error:
                bad.setdefault(row, error)
                found.append(None)
        return found

    def _decode_on_device(self, field: Field, images: Sequence[Any]) -> Columns:
        """Decode images on the accelerator; empty if it cannot decode these."""
        shape = self._options.image_shape(field)
        if self._accelerator is None or shape is None:
            return {}
        resize = self._options.resizes(field)
        with self._accelerator.on_stream():
            decoded = self._accelerator.decode_jpegs(images, shape, resize=resize)
        return {} if decoded is None else with_mask(field, decoded, images)


def pad(values: Sequence[Any], empty: npt.NDArray[Any] | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Pad arrays with zeros to one shape; also returns the shape of each value. `empty` is used if all are null."""
    arrays = [np.asarray(value) for value in values if value is not None]
    if not arrays:
        nothing = np.zeros(0) if empty is None else empty
        return np.zeros((len(values), *nothing.shape), nothing.dtype), np.zeros((len(values), nothing.ndim), np.int64)
    dimensions = max(array.ndim for array in arrays)
    if {array.ndim for array in arrays} == {2, 3}:  # gray images among those with channels
        values = [value[..., None] if np.ndim(value) == 2 else value for value in values]
        arrays = [np.asarray(value) for value in values if value is not None]
    if any(array.ndim != dimensions for array in arrays):
        raise InvalidInputError("values with different numbers of dimensions cannot be padded; use lists")
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


def as_bytes(data: Buffer) -> memoryview:
    """Bytes as unsigned: Arrow buffers are signed, which decoders reject."""
    return memoryview(data).cast("B")


def contiguous(empty: Allocator, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory of `empty`, or memory of its own if that is not contiguous."""
    memory = empty(shape, dtype)
    in_place = isinstance(memory, np.ndarray) and memory.flags.c_contiguous
    return memory if in_place else np.empty(shape, dtype)


def split(columns: Mapping[str, Values], lengths: Sequence[int]) -> list[Columns]:
    """Split columns into batches of the given lengths."""
    if len(lengths) == 1:
        return [dict(columns)]
    batches: list[Columns] = []
    start = 0
    for length in lengths:
        batches.append({name: values[start : start + length] for name, values in columns.items()})
        start += length
    return batches


def put_row(columns: Columns, index: int, row: Columns, accelerator: Accelerator | None = None) -> None:
    """Overwrite one row."""
    for name, values in columns.items():
        one = row[name]
        if accelerator is not None and not isinstance(values, np.ndarray | list):
            with accelerator.on_stream():
                accelerator.put(np.array(one[0]), values[index])
            continue
        if isinstance(values, np.ndarray) and isinstance(one, np.ndarray) and one.dtype != values.dtype:
            values = columns[name] = values.astype(np.result_type(values, one))  # 8-bit and 16-bit grayscale
        values[index] = one[0]
