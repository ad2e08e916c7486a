"""Encode a user's values as the Arrow arrays of a table's fields; values too large for a page become blobs."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import chain
from math import prod
from os import PathLike
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, StorageError
from penstock.format import BLOB_REFERENCE, MAX_INLINE_BYTES, Blob, Field, Schema
from penstock.format.kinds import (
    Audio,
    BadValueError,
    Bytes,
    Image,
    Kind,
    Linked,
    Tensor,
    Text,
    Values,
    any_shape,
    encoded_bytes,
    encoded_shape,
    nat_as_null,
    to_numpy,
)
from penstock.history import discard
from penstock.storage import Store
from penstock.table._blobs import write_blob
from penstock.table._gather import concat, fill_values, take
from penstock.table._input import Column, ColumnBatch
from penstock.table._links import LinkContainers
from penstock.types import Buffer

_CHUNK_BYTES = 8 << 20
_HEAD_BYTES = 256 << 10
"""The beginning of a blob that is validated against the column's kind; a JPEG has its size after its metadata."""
_BYTES = (bytes, bytearray, memoryview)
ROLLED_BACK = ". The whole call was rolled back"


@dataclass(frozen=True)
class Encoder:
    """Encodes values; blobs are written to the store on the way."""

    store: Store
    containers: LinkContainers
    new_containers: dict[str, str]
    """Link containers that are new to the table, by name; filled while encoding."""
    blobs: list[Blob]
    """Blobs written while encoding."""
    other_shapes: set[int] = dataclass_field(default_factory=set)
    """Ids of fields with an image of another shape than was inferred; filled while encoding."""

    @contextmanager
    def discard_on_error(self) -> Iterator[None]:
        """If the block raises, delete the blobs and undeclare the containers of this call: nothing refers to them."""
        try:
            yield
        except BaseException:
            for name in self.new_containers:
                self.containers.declared.pop(name, None)
            if self.blobs:
                with suppress(StorageError):  # vacuum removes what is left; the error to report is the first one
                    discard(self.store, [blob.key for blob in self.blobs])
            raise

    def batch(self, schema: Schema, batch: ColumnBatch) -> dict[int, pa.Array]:
        """All columns of a batch, by field id; blob references by negative field id."""
        for name in batch.columns:
            if name not in schema:
                known = ", ".join(schema.names)
                raise InvalidInputError(f"there is no column {name!r}; the table has {known}{ROLLED_BACK}")
        arrays: dict[int, pa.Array] = {}
        for field in schema:
            arrays.update(
                self.column(
                    field,
                    batch.columns.get(field.name),
                    rows=batch.rows,
                    first_row=batch.first_row,
                    absent=batch.absent.get(field.name),
                )
            )
        return arrays

    def column(
        self,
        field: Field,
        values: Column | None,
        *,
        rows: int,
        first_row: int,
        absent: npt.NDArray[np.bool_] | None = None,
    ) -> dict[int, pa.Array]:
        """One column; raises `InvalidInputError`, naming column and row, for a value that does not fit.

        Rows of the mask `absent` get the column's fill value.
        """
        with _name_bad_value(field.name, first_row):
            if values is None:
                if not field.nullable and field.fill is None:
                    raise BadValueError(0, "no value was given, and the column is not nullable")
                return {field.id: fill_values(field, rows)}
            values = to_numpy(values)
            references: list[dict[str, Any] | None] = [None] * rows
            kind = any_shape(field.kind)
            bytes_like = isinstance(kind, Bytes | Image | Audio)
            if bytes_like and isinstance(values, pa.Array | pa.ChunkedArray) and values.nbytes > MAX_INLINE_BYTES:
                values = values.to_pylist()
            if isinstance(values, pa.Array | pa.ChunkedArray):
                array = from_arrow(kind, values)
            elif isinstance(kind, Linked):
                array = kind.to_array(self.containers.resolve(values, self.new_containers))
            elif bytes_like:
                array = kind.to_array(self._extract_blobs(field, values, references))
            else:
                array = kind.to_array(values)
            array = nat_as_null(kind, array)
            self._compare_shapes(field, array)
            if absent is not None and field.fill is not None:
                array = take(concat([array, fill_values(field, 1)]), np.where(absent, rows, np.arange(rows)))
            if not field.nullable and array.null_count:
                for index in np.flatnonzero(np.asarray(array.is_null())):
                    if references[index] is None:
                        raise BadValueError(int(index), "the value is missing, and the column is not nullable")
        if any(references):
            return {field.id: array, -field.id: pa.array(references, BLOB_REFERENCE)}
        return {field.id: array}

    def _compare_shapes(self, field: Field, images: pa.Array) -> None:
        """Record a field with an image that may have another shape than was inferred."""
        kind = field.kind
        if isinstance(kind, Image) and kind.inferred and field.id not in self.other_shapes:
            encoded = (memoryview(value.as_buffer()) for value in images if value.is_valid)
            if any(encoded_shape(data) != kind.shape for data in encoded):
                self.other_shapes.add(field.id)

    def _extract_blobs(
        self, field: Field, values: Sequence[Any] | Values, references: list[dict[str, Any] | None]
    ) -> Sequence[Any]:
        """Inline values; a value too long for a page is stored as a blob and replaced by None."""
        inline = list(values)
        for index, value in enumerate(inline):
            value = inline[index] = encoded_bytes(value)
            if isinstance(value, memoryview):
                value = inline[index] = value.cast("B") if value.c_contiguous else value.tobytes()
            elif not isinstance(value, _BYTES) and (isinstance(value, PathLike) or hasattr(value, "read")):
                value = inline[index] = self._read_file(field, index, value)
            if isinstance(value, _BYTES) and len(value) > MAX_INLINE_BYTES:
                self._check_head(field, index, bytes(value[:_HEAD_BYTES]))
                references[index] = self._write(value)
                inline[index] = None
            elif isinstance(value, _StreamedBlob):
                references[index] = value.reference
                inline[index] = None
        return inline

    def _check_head(self, field: Field, index: int, head: bytes) -> None:
        """Validate a blob by its beginning."""
        with _at_row(index):
            self._compare_shapes(field, any_shape(field.kind).to_array([head]))

    def _read_file(self, field: Field, index: int, source: Any) -> Any:
        """A file's bytes if they are short enough for a page, else a blob streamed from the file."""
        with _open_source(index, source) as file:
            chunks = _chunks(index, file)
            head: list[bytes] = []
            for chunk in chunks:
                head.append(chunk)
                if sum(map(len, head)) > MAX_INLINE_BYTES:
                    break
            else:
                return b"".join(head)
            self._check_head(field, index, b"".join(head)[:_HEAD_BYTES])
            return _StreamedBlob(self._write_chunks(chain(head, chunks)))

    def _write(self, value: Buffer) -> dict[str, Any]:
        view = memoryview(value).cast("B")
        return self._write_chunks(view[at : at + _CHUNK_BYTES] for at in range(0, len(view), _CHUNK_BYTES))

    def _write_chunks(self, chunks: Iterable[Buffer]) -> dict[str, Any]:
        blob = write_blob(self.store, chunks)
        self.blobs.append(blob)
        return {"id": blob.id, "length": blob.length, "crc": blob.crc}


@dataclass(frozen=True)
class _StreamedBlob:
    reference: dict[str, Any]


def from_arrow(kind: Kind, given: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A user's Arrow column as the array of a kind: by a cast if that is lossless, else value by value."""
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
        given = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if isinstance(given, pa.DictionaryArray):
        given = given.dictionary_decode()
    if given.type == kind.arrow_type:
        return _validate(kind, given)
    if pa.types.is_null(given.type):
        return pa.nulls(len(given), kind.arrow_type)
    if isinstance(given, pa.FixedShapeTensorArray):
        return kind.to_array(_tensor_rows(given))
    if isinstance(given, pa.ExtensionArray):
        return from_arrow(kind, given.storage)
    try:
        cast = _cast(kind, given)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cast = None  # value by value is slower, but names the value that does not fit
    if cast is not None:
        return _validate(kind, cast)
    flat = _flatten_fixed_size(given)
    if isinstance(kind, Tensor) and not kind.ragged and flat is not None:
        if kind.element.components == 2 and flat.size == len(given) * prod(kind.stored_shape):
            flat = kind.element.from_stored(flat.astype(kind.element.stored).reshape(-1, *kind.stored_shape))
        if flat.size == len(given) * prod(kind.stored_shape[: len(kind.shape)]):
            return kind.to_array(flat.reshape(len(given), *kind.stored_shape[: len(kind.shape)]))
    return kind.to_array(given.to_pylist())


def _validate(kind: Kind, array: pa.Array) -> pa.Array:
    if kind.invalid_reason(array) is not None:
        for index in range(len(array)):
            if (flaw := kind.invalid_reason(array.slice(index, 1))) is not None:
                raise BadValueError(index, flaw)
    return array


def _cast(kind: Kind, given: pa.Array) -> pa.Array | None:
    """A column of the kind by an Arrow cast; None if there is no cast, or if it could change a value."""
    types, source = pa.types, given.type
    if isinstance(kind, Text):
        return pc.cast(given, pa.string()) if types.is_large_string(source) or types.is_string_view(source) else None
    if isinstance(kind, Bytes):
        binary = types.is_large_binary(source) or types.is_binary_view(source) or types.is_fixed_size_binary(source)
        return pc.cast(given, pa.binary()) if binary else None
    if not isinstance(kind, Tensor) or kind.shape not in ((), (None,)):
        return None
    if kind.shape == (None,):
        if not (types.is_list(source) or types.is_large_list(source) or types.is_fixed_size_list(source)):
            return None
        source = source.value_type
    wrap = pa.list_ if kind.ragged else (lambda inner: inner)
    element = kind.element
    if types.is_temporal(source) and element.logical.kind in "Mm":
        unit = kind.dtype.partition("[")[2].rstrip("]")
        if types.is_timestamp(source) and source.tz is not None:
            given = given.cast(wrap(pa.timestamp(source.unit)))
        time = pa.timestamp(unit) if element.logical.kind == "M" else pa.duration(unit)
        return given.cast(wrap(time)).cast(wrap(pa.int64()))
    if types.is_boolean(source) and kind.dtype == "bool":
        return given.cast(kind.arrow_type)
    if not (types.is_integer(source) or types.is_floating(source)) or element.stored != element.logical:
        return None
    cast = given.cast(kind.arrow_type)
    before, after = (np.isfinite(_flat_values(array)).sum() for array in (given, cast))
    return cast if before == after else None


def _flat_values(array: pa.Array) -> npt.NDArray[Any]:
    flat = array if pa.types.is_primitive(array.type) else array.flatten()
    return np.asarray(flat.drop_null())


def _tensor_rows(given: pa.FixedShapeTensorArray) -> list[Any]:
    """Rows of a tensor array, whatever its axis permutation."""
    rows = given.storage.fill_null([0] * given.storage.type.list_size) if given.null_count else given.storage
    whole = pa.ExtensionArray.from_storage(given.type, rows).to_numpy_ndarray()
    if rows.flatten().null_count:
        raise BadValueError(0, "a tensor has a null inside")
    return [row if valid else None for row, valid in zip(whole, given.is_valid().to_pylist(), strict=True)]


def _flatten_fixed_size(given: pa.Array) -> npt.NDArray[Any] | None:
    """The flat values of (nested) fixed-size lists; None if a value is null or a list has variable size."""
    while pa.types.is_fixed_size_list(given.type) and not given.null_count:
        given = given.flatten()
    if given.null_count or not (pa.types.is_primitive(given.type)):
        return None
    return np.asarray(given.to_numpy(zero_copy_only=False))


@contextmanager
def _name_bad_value(name: str, first_row: int) -> Iterator[None]:
    try:
        yield
    except BadValueError as bad:
        raise InvalidInputError(f"column {name!r}, row {first_row + bad.index}: {bad.reason}{ROLLED_BACK}") from None


@contextmanager
def _at_row(index: int) -> Iterator[None]:
    try:
        yield
    except BadValueError as bad:
        raise BadValueError(index, bad.reason) from None


@contextmanager
def _open_source(index: int, source: Any) -> Iterator[BinaryIO]:
    """The file at a path, which must not change while it is read; an open file as it is, and not closed."""
    if not isinstance(source, PathLike):
        yield source
        return
    try:
        file = open(source, "rb")  # noqa: SIM115
    except OSError as error:
        raise BadValueError(index, f"cannot be read: {error}") from None
    with file:
        before = os.fstat(file.fileno())
        yield file
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise BadValueError(index, f"{os.fspath(source)} changed while it was read; append it once it is written")


def _chunks(index: int, file: BinaryIO) -> Iterator[bytes]:
    """Chunks of a file until its end; a short read is not the end, only an empty one is."""
    while True:
        try:
            chunk = file.read(_CHUNK_BYTES)
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise BadValueError(index, f"cannot be read: {error}") from None
        if not isinstance(chunk, _BYTES):
            raise BadValueError(index, f"expected a file of bytes, got one of {type(chunk).__name__}")
        if not chunk:
            return
        yield bytes(chunk)


def num_rows(arrays: Mapping[int, pa.Array]) -> int:
    """The number of rows in a batch of arrays."""
    return len(next(iter(arrays.values())))
