"""Collate the rows of a span column by column, and decode encoded columns."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator, Allocator, SlabColumns, writable_view
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._decode import Columns, decode_column, with_mask
from penstock.engine.assembly._values import Allocators, RowsAt
from penstock.engine.planning import Layout
from penstock.engine.window import TableTask, WindowRows
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor, Values
from penstock.table import EncodedRows, FixedColumn, Int64Array, RandomRowReader, RawColumn, Reader, as_batch
from penstock.types import Buffer

BadRows = dict[int, Exception]
"""The errors of bad rows, by index."""


class Collator:
    """Collates rows into columns."""

    def __init__(
        self, reader: Reader, layout: Layout, options: DecodeOptions, accelerator: Accelerator | None = None
    ) -> None:
        """The accelerator decodes images if it can."""
        self._reader, self._layout, self._options, self._accelerator = reader, layout, options, accelerator
        self._composition = layout.composition
        self.empty_any_shape: Allocator | None = None
        """Memory for images of any shape: what is decoded to where the loop reads it need not be copied there."""
        self._view: Callable[[Buffer], Any] = unsigned if accelerator is None else writable_view
        self.on_read: Callable[[int, float], None] | None = None
        """Called with the bytes read from files, and the time that took."""

    def columns(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> tuple[Columns, BadRows]:
        """All columns of some rows, and the errors of bad rows by index; the values of bad rows are undefined."""
        columns: dict[str, Any] = {}
        bad: BadRows = {}
        for column in self._layout.fixed:
            columns.update(self.fixed(column, task.located, slab, empty(column.name), bad))
        for field in self._layout.variable:
            columns.update(self.variable(field, task.located, empty(field.name), bad))
        return columns, bad

    def fixed(
        self, column: FixedColumn, located: WindowRows, slab: SlabColumns, empty: Allocator, bad: BadRows
    ) -> Columns:
        """A column of a fixed shape from the slab or from files, and its mask; adds the errors of bad rows to `bad`."""
        if column.name in located.files:
            values = self._read_rows(column, located, slab, empty, bad)
        else:
            values = slab.gather(column, located.slab_rows, empty)
        columns: Columns = {column.name: values}
        if column.nullable:
            columns[f"{column.name}_mask"] = slab.masks[column.name][located.slab_rows]
        return columns

    def _read_rows(
        self, column: FixedColumn, located: WindowRows, slab: SlabColumns, empty: Allocator, bad: BadRows
    ) -> Any:
        """Rows that are read from files straight to their places."""
        files, out = located.files[column.name], empty((len(located.slab_rows), *column.shape), column.dtype)
        if len(elsewhere := files.elsewhere):
            out[elsewhere] = slab.gather(column, located.slab_rows[elsewhere], np.empty)
        base, places = (out.array, out.places) if isinstance(out, RowsAt) else (out, np.arange(len(out)))
        data, row_bytes = base.reshape(-1).view(np.uint8).data, base[:1].nbytes
        starts = (places * row_bytes).tolist()
        started = time.perf_counter()
        with self._reader.missing_as_corrupt():
            bad.update(files.read(self._reader.store, lambda row: data[starts[row] : starts[row] + row_bytes]))
        if self.on_read is not None:
            self.on_read(files.bytes, time.perf_counter() - started)
        return out

    def variable(self, field: Field, located: WindowRows, empty: Allocator, bad: BadRows) -> Columns:
        """A column of variable size from the window, decoded; adds the errors of bad rows to `bad`."""
        images = located.encoded(field.name, self._view) if self._options.decodes(field) else None
        if images is None:
            return self._variable(field, located.raw_column(field.name), empty, bad)
        return self._decoded(field, images, empty, bad, self._accelerator)

    def _decoded(
        self, field: Field, encoded: Sequence[Any], empty: Allocator, bad: BadRows, accelerator: Accelerator | None
    ) -> Columns:
        return decode_column(
            field, encoded, self._options, bad,
            empty=empty, empty_any_shape=self.empty_any_shape, accelerator=accelerator,
        )  # fmt: skip

    def rows(self, positions: Int64Array, random_reader: RandomRowReader | None = None) -> tuple[Columns, BadRows]:
        """The same for any positions, read on demand."""
        rising, first, places = np.unique(positions, return_index=True, return_inverse=True)
        numbers: dict[str, RawColumn] = {}
        if random_reader is not None and random_reader.is_local:
            numbers = self._fixed_width(rising, first, places, random_reader)
        others = [field for field in self._layout.fields if field.name not in numbers]
        cache = None if random_reader is None else random_reader.cache
        cells = self._reader.raw_columns(others, [rising], cache=cache)[0] if others else {}
        if not np.array_equal(rising, positions):
            cells = {name: column.take(places, np.empty) for name, column in cells.items()}
        columns: Columns = {}
        bad: BadRows = {}
        for column in self._layout.fixed:
            if column.field is None:
                columns[column.name] = self._reader.row_ids(rising)[places]
                continue
            raw = numbers.get(column.name) or cells[column.name]
            columns |= as_batch({column.name: self._reader.decode(column.field, raw)})
        for field in self._layout.variable:
            columns.update(self._variable(field, cells[field.name], np.empty, bad))
        return columns, bad

    def _fixed_width(
        self, rising: Int64Array, first: Int64Array, places: Int64Array, random_reader: RandomRowReader
    ) -> dict[str, RawColumn]:
        """Fixed-width columns that are read without whole pages, in the requested order, repeats included."""
        wanted = self._reader.locate(rising)
        again = np.flatnonzero(first[places] != np.arange(len(places)))
        read = {}
        with self._reader.missing_as_corrupt():
            for column in self._layout.fixed:
                if column.field is None:
                    continue
                values = random_reader.read(column.field, wanted, first, len(places), np.empty)
                if values is not None:
                    values[again] = values[first[places[again]]]
                    read[column.name] = RawColumn(values, ())
        return read

    def row_id(self, position: int) -> int:
        """The id of a row, or of the row that stands for a sample; the number of a sample of which none does."""
        if self._composition is not None:
            if self._composition.anchor is None:
                return position
            position = int(self._composition.draw(np.array([position])).positions[self._composition.anchor])
        return int(self._reader.row_ids(np.array([position]))[0])

    def row(self, position: int) -> Columns:
        """One row, decoded; raises its error if it is bad."""
        columns, bad = self.rows(np.array([position]))
        for error in bad.values():
            raise error
        return columns

    def _variable(self, field: Field, cells: RawColumn, empty: Allocator, bad: BadRows) -> Columns:
        decodes = self._options.decodes(field)
        if not decodes and not self._options.leaves_encoded(field):
            return self._values(field, cells, bad)
        encoded = self._reader.load_external(field, cells)
        if not decodes:
            return {field.name: encoded.to_pylist()}
        values = EncodedRows([encoded], unsigned).values(np.arange(len(encoded)))
        return self._decoded(field, values, empty, bad, None)

    def _values(self, field: Field, cells: RawColumn, bad: BadRows) -> Columns:
        try:
            columns = as_batch({field.name: self._reader.decode(field, cells)})
        except SampleError:
            columns = {field.name: self._values_by_row(field, cells, bad)}
        values = columns[field.name]
        if field.nullable and isinstance(value_kind(field.kind), Tensor) and isinstance(values, list):  # ragged
            columns |= with_mask(field, values, values)
        return columns

    def _values_by_row(self, field: Field, cells: RawColumn, bad: BadRows) -> list[Any]:
        """Values one by one, if at least one is bad."""
        decoded: list[Any] = []
        assert cells.array is not None
        for row in range(len(cells.array)):
            try:
                decoded.append(self._reader.decode(field, cells.row(row)).item(0))
            except SampleError as error:
                bad.setdefault(row, error)
                decoded.append(None)
        return decoded

    def put_row(self, columns: Columns, index: int, row: Columns) -> None:
        """Overwrite one row."""
        for name, one in row.items():
            values: Any = columns[name]
            if self._accelerator is not None and not isinstance(values, np.ndarray | list):
                with self._accelerator.on_stream():
                    self._accelerator.put(np.array(one[0]), values[index])
                continue
            if isinstance(values, np.ndarray) and isinstance(one, np.ndarray) and one.dtype != values.dtype:
                values = columns[name] = values.astype(np.result_type(values, one))  # 8-bit and 16-bit grayscale
            values[index] = one[0]


def pad(values: Sequence[Any], empty: npt.NDArray[Any] | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Pad arrays with zeros to one shape; also returns the shape of each value. `empty` is used if all are null."""
    arrays = {row: np.asarray(value) for row, value in enumerate(values) if value is not None}
    if not arrays:
        empty = np.zeros(0) if empty is None else empty
        return np.zeros((len(values), *empty.shape), empty.dtype), np.zeros((len(values), empty.ndim), np.int64)
    dimensions = {array.ndim for array in arrays.values()}
    if dimensions == {2, 3}:  # gray images among those with channels
        arrays = {row: array[..., None] if array.ndim == 2 else array for row, array in arrays.items()}
    elif len(dimensions) > 1:
        raise InvalidInputError("values with different numbers of dimensions cannot be padded; use lists")
    shapes = np.zeros((len(values), max(dimensions)), np.int64)
    for row, array in arrays.items():
        shapes[row] = array.shape
    dtype = np.result_type(*{array.dtype for array in arrays.values()})
    out = np.zeros((len(values), *shapes.max(axis=0).tolist()), dtype)
    for row, array in arrays.items():
        inside: tuple[slice, ...] = tuple(map(slice, array.shape))
        out[row][inside] = array
    return out, shapes


def unsigned(data: Buffer) -> memoryview:
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
    bounds = pairwise(accumulate(lengths, initial=0))
    return [{name: values[start:end] for name, values in columns.items()} for start, end in bounds]
