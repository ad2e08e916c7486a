"""From values to the Arrow arrays of a table's fields; huge values leave for blobs on the way."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import BLOB_REFERENCE, INLINE_BYTES, Blob, Field, Schema
from penstock.format.kinds import Audio, BadValue, Bytes, Image, Kind, Linked, Tensor, Text, Values
from penstock.storage import Store
from penstock.table._blobs import write_blob
from penstock.table._input import Column, ColumnBatch
from penstock.table._links import Containers
from penstock.table._pages import filled
from penstock.types import Buffer

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Encoder:
    """Turns a user's values into storable arrays."""

    store: Store
    containers: Containers
    new_containers: dict[str, str]
    """Containers that links brought in, by name; filled while encoding."""
    blobs: list[Blob]
    """Blobs written while encoding."""

    def batch(self, schema: Schema, batch: ColumnBatch) -> dict[int, pa.Array]:
        """All columns of a batch, by field id; references to blobs by minus the field id."""
        for name in batch.columns:
            if name not in schema:
                known = ", ".join(schema.names)
                raise InvalidInputError(f"there is no column {name!r}; the table has {known}. Nothing was kept")
        arrays: dict[int, pa.Array] = {}
        for field in schema:
            arrays.update(self.column(field, batch.columns.get(field.name), rows=batch.rows, first_row=batch.first_row))
        return arrays

    def column(self, field: Field, values: Column | None, *, rows: int, first_row: int) -> dict[int, pa.Array]:
        """One column; the error for a value that does not fit names the column and the row."""
        with _blame(field.name, first_row):
            if values is None:
                if not field.nullable and field.fill is None:
                    raise BadValue(0, "no value was given, and the column is not nullable")
                return {field.id: filled(field, rows)}
            references: list[dict[str, Any] | None] = [None] * rows
            if isinstance(values, pa.Array | pa.ChunkedArray):
                array = from_arrow(field.kind, values)
            elif isinstance(field.kind, Linked):
                places, new = self.containers.resolve(values)
                self.new_containers.update(new)
                array = field.kind.to_array(places)
            elif isinstance(field.kind, Bytes | Image | Audio):
                array = field.kind.to_array(self._without_blobs(field.kind, values, references))
            else:
                array = field.kind.to_array(values)
            if not field.nullable and array.null_count:
                for index in np.flatnonzero(np.asarray(array.is_null())):
                    if references[index] is None:
                        raise BadValue(int(index), "the value is missing, and the column is not nullable")
        if any(references):
            return {field.id: array, -field.id: pa.array(references, BLOB_REFERENCE)}
        return {field.id: array}

    def _without_blobs(
        self, kind: Kind, values: Sequence[Any] | Values, references: list[dict[str, Any] | None]
    ) -> Sequence[Any]:
        """Values short enough for a page; longer ones, and files, are stored as blobs and leave a None."""
        inline = list(values)
        for index, value in enumerate(inline):
            if isinstance(value, PathLike) or hasattr(value, "read"):
                value = inline[index] = self._read_file(index, value)
            if isinstance(value, bytes | bytearray | memoryview) and len(value) > INLINE_BYTES:
                with _at(index):
                    kind.to_array([bytes(value[:4096])])
                references[index] = self._write(value)
                inline[index] = None
            elif isinstance(value, _Streamed):
                references[index] = value.reference
                inline[index] = None
        return inline

    def _read_file(self, index: int, source: Any) -> Any:
        """A file's bytes where they are short enough for a page, else a blob made of them as they are read."""
        try:
            with open(source, "rb") if isinstance(source, PathLike) else _borrowed(source) as file:
                head = file.read(INLINE_BYTES + 1)
                if len(head) <= INLINE_BYTES:
                    return head

                def chunks() -> Iterator[Buffer]:
                    yield head
                    while chunk := file.read(_CHUNK_BYTES):
                        yield chunk

                return _Streamed(self._write_chunks(chunks()))
        except OSError as error:
            raise BadValue(index, f"cannot be read: {error}") from None

    def _write(self, value: Buffer) -> dict[str, Any]:
        view = memoryview(value).cast("B")
        return self._write_chunks(view[at : at + _CHUNK_BYTES] for at in range(0, len(view), _CHUNK_BYTES))

    def _write_chunks(self, chunks: Iterator[Buffer]) -> dict[str, Any]:
        blob = write_blob(self.store, chunks)
        self.blobs.append(blob)
        return {"id": blob.id, "length": blob.length, "crc": blob.crc}


@dataclass(frozen=True)
class _Streamed:
    reference: dict[str, Any]


def from_arrow(kind: Kind, given: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A user's Arrow column as the array of a kind: by a cast where the layouts allow it, else value by value."""
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
        given = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if given.type == kind.arrow_type and not isinstance(kind, Image | Audio):
        return given
    if isinstance(given, pa.DictionaryArray):
        given = given.dictionary_decode()
    if isinstance(kind, Text | Bytes) or (isinstance(kind, Tensor) and kind.shape in ((), (None,))):
        plain = given.storage if isinstance(given, pa.ExtensionArray) else given
        if pa.types.is_temporal(plain.type) and isinstance(kind, Tensor):
            plain = _as_int64(plain, kind.dtype)
        try:
            return pc.cast(plain, kind.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # value by value: slower, and it can say which value is wrong
    if (
        isinstance(kind, Tensor)
        and not kind.ragged
        and pa.types.is_fixed_size_list(given.type)
        and not given.null_count
    ):
        numbers = given.flatten()
        if numbers.type == pa.from_numpy_dtype(kind.element.stored) and not numbers.null_count:
            return kind.to_array(kind.element.from_stored(np.asarray(numbers).reshape(len(given), *kind.stored_shape)))
    return kind.to_array(given.to_pylist())


def _as_int64(array: pa.Array, dtype: str) -> pa.Array:
    unit = dtype.partition("[")[2].rstrip("]")
    target = pa.duration(unit) if dtype.startswith("timedelta") else pa.timestamp(unit)
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit))
    return array.cast(target).cast(pa.int64())


@contextmanager
def _blame(name: str, first_row: int) -> Iterator[None]:
    try:
        yield
    except BadValue as bad:
        message = f"column {name!r}, row {first_row + bad.index}: {bad.reason}. Nothing of this call was kept"
        raise InvalidInputError(message) from None


@contextmanager
def _at(index: int) -> Iterator[None]:
    try:
        yield
    except BadValue as bad:
        raise BadValue(index, bad.reason) from None


@contextmanager
def _borrowed(file: BinaryIO) -> Iterator[BinaryIO]:
    """A file that its owner will close."""
    yield file


def rows_of(arrays: Mapping[int, pa.Array]) -> int:
    """Rows in a batch of arrays."""
    return len(next(iter(arrays.values())))
