"""From a source's rows to those of the table: the user's transform, columns, sizes and codecs; and the schema."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, ImageCodec, decode_image, decode_image_into, image_size
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Column, ColumnLike, Schema, as_column, infer_schema, make_schema
from penstock.format.kinds import Image, Kind, Link, Linked, Mask, Tensor
from penstock.ingest._bucket import Bucket
from penstock.ingest._settings import Settings, find_transform
from penstock.ingest._source import Found, Reading, Reject, Row, Rows, spread
from penstock.storage import run_all
from penstock.table import Chunk

_CHUNK_ROWS = 1024
_CHUNK_BYTES = 14 << 20
"""Enough for a file, and not more than one takes."""
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 16
_WEIGHED = 16
_ARRAYS = (np.ndarray, memoryview)
_LINKED_PAGE_BYTES, _PLACE_BYTES, _LEAST_LINKED_PAGE = 256 << 10, 120, 1024
"""A page of links stands for about as many bytes as other pages have; a link takes about so many itself."""


class Shaper:
    """Changes rows as the settings say."""

    def __init__(self, settings: Settings, pictures: Mapping[str, Kind], known: Mapping[str, Kind]) -> None:
        """`pictures` are the source's columns of pictures, `known` those whose kinds it knows."""
        self._settings, self._known = settings, known
        self._transform = None if settings.transform is None else find_transform(settings.transform)
        self._pictures = {
            name: kind
            for name, kind in pictures.items()
            if settings.decode or settings.resize is not None or name in settings.codecs
        }
        self._as_they_are = self._transform is None and not self._pictures and settings.columns is None

    def rows(self, found: Iterable[Found]) -> Iterator[Row | Rows | Reject]:
        """The rows to be stored; one that cannot be changed as asked becomes a reject."""
        for item in found:
            if isinstance(item, Rows):
                if self._transform is None and not self._pictures:
                    yield Rows(item.name, self._chosen(item.batch))
                else:
                    names = (f"{item.name}, row {number}" for number in range(len(item.batch)))
                    made = map(self._row, map(Row, names, self._plain_rows(item.batch)))
                    yield from (row for row in made if row is not None)
            elif isinstance(item, Reject) or self._as_they_are:
                yield item
            elif (row := self._row(item)) is not None:
                yield row

    def _plain_rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Rows as a user's function likes them: tensors as arrays, and not as the numbers they are stored as."""
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = self._known.get(name)
            stored = isinstance(kind, Tensor) and column.type == kind.arrow_type and not column.null_count
            columns.append(kind.to_values(column) if kind is not None and stored else column.to_pylist())
        for values in zip(*columns, strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))

    def _row(self, row: Row) -> Row | Reject | None:
        values: dict[str, Any] | None = dict(row.values)
        if self._transform is not None:
            try:
                values = self._transform(values or {})
            except Exception as error:
                return Reject(row.name, f"the transform failed: {type(error).__name__}: {error}")
        if values is None:
            return None
        try:
            for name, kind in self._pictures.items():
                if values.get(name) is not None:
                    values[name] = self._picture(name, kind, values[name])
        except (SampleError, InvalidInputError) as error:
            return Reject(row.name, str(error))
        if self._settings.columns is not None:
            values = {name: values[name] for name in self._settings.columns if name in values}
        return Row(row.name, values)

    def _picture(self, name: str, kind: Kind, value: Any) -> Any:
        pixels = value if isinstance(value, np.ndarray) else None
        size = self._settings.resize
        if size is not None and not isinstance(kind, Mask):
            if pixels is not None:
                value = ImageCodec("png").encode(pixels)
            pixels = np.empty((*size, 3), np.uint8)
            decode_image_into(value, pixels, resize=True)
        elif pixels is None:
            pixels = decode_image(value)
        if self._settings.decode:
            return pixels
        codec = self._settings.codecs.get(name) or (kind.codec if isinstance(kind, Image) else "png")
        return ImageCodec.parse(codec).encode(pixels)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._settings.columns is None:
            return batch
        return batch.select([name for name in self._settings.columns if name in batch.schema.names])


def chunks(found: Iterable[Row | Rows | Reject], refuse: Any, shuffle: np.random.Generator | None) -> Iterator[Chunk]:
    """Rows put together for writing; rejects go to `refuse`."""
    names: list[str] = []
    rows: list[Mapping[str, Any]] = []
    size = 0
    for item in found:
        if isinstance(item, Reject):
            refuse(*item)
            continue
        if isinstance(item, Rows):
            if shuffle is None:
                yield Chunk(item.batch, item.name)
            else:
                order = shuffle.permutation(len(item.batch))
                yield Chunk(item.batch.take(pa.array(order)), [f"{item.name}, row {row}" for row in order.tolist()])
            continue
        names.append(item.name)
        rows.append(item.values)
        size += sum(map(_size, item.values.values()))
        if len(rows) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield _chunk(rows, names, shuffle)
            names, rows, size = [], [], 0
    if rows:
        yield _chunk(rows, names, shuffle)


def _chunk(rows: list[Mapping[str, Any]], names: list[str], shuffle: np.random.Generator | None) -> Chunk:
    order = range(len(rows)) if shuffle is None else shuffle.permutation(len(rows)).tolist()
    return Chunk([rows[index] for index in order], [names[index] for index in order])


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, _ARRAYS) else len(value) if hasattr(value, "__len__") else 8


@dataclass(frozen=True)
class Weighed:
    """What a column of pictures costs as it came, and as tensors."""

    column: str
    encoded_bytes: float
    decoded_bytes: float
    decode_s: float
    """Seconds that one core takes for one picture."""


@dataclass(frozen=True)
class Sample:
    """The first rows of a source, from here and there in it, and what follows from them."""

    schema: Schema
    pictures: Mapping[str, Kind]
    """The source's columns of pictures, as they come."""
    weighed: tuple[Weighed, ...]


def look(bucket: Bucket, reading: Reading, settings: Settings) -> Sample:
    """Read a few rows, and settle the columns."""
    sampled = run_all(
        lambda file: list(_first(reading.rows(bucket, [file]), _SAMPLED_ROWS)),
        spread(reading.files, _SAMPLED_FILES),
        max_workers=bucket.store.fan_out,
    )
    found = list(chain.from_iterable(sampled))
    rejects = tuple(item for item in found if isinstance(item, Reject))
    good = [item for item in found if not isinstance(item, Reject)]
    if not good:
        told = f": {rejects[0].name}: {rejects[0].reason}" if rejects else ""
        raise InvalidInputError(f"nothing in {bucket.store.uri} could be read as rows{told}")
    known = {name: as_column(name, column) for name, column in reading.columns.items()}
    plain = _columns(good)
    pictures = _pictures(known, plain)
    shaper = Shaper(replace(settings, columns=None), pictures, {name: column.kind for name, column in known.items()})
    shaped = [item for item in shaper.rows(good) if not isinstance(item, Reject)]
    if not shaped:
        raise InvalidInputError("the transform left no row of those that were looked at")
    columns = _columns(shaped)
    _check_names(settings, columns)
    chosen = settings.columns if settings.columns is not None else columns
    schema = make_schema({name: _column(name, columns[name], known, settings) for name in chosen})
    weighed = tuple(_weigh(name, plain[name]) for name in pictures) if not settings.link else ()
    return Sample(schema, pictures, tuple(w for w in weighed if w is not None))


def _first(found: Iterator[Found], count: int) -> Iterator[Found]:
    """The first rows, and what is rejected among them."""
    for item in islice(found, count):
        if isinstance(item, Rows):
            yield Rows(item.name, item.batch.slice(0, count))
            count -= len(item.batch)
        else:
            yield item
            count -= 1
        if count <= 0:
            return


def _columns(rows: Sequence[Row | Rows]) -> dict[str, Any]:
    """Rows column by column; Arrow data stays Arrow where all of it is."""
    batches = [item.batch.slice(0, _SAMPLED_ROWS) for item in rows if isinstance(item, Rows)]
    if len(batches) == len(rows):
        table = pa.concat_tables((pa.Table.from_batches([batch]) for batch in batches), promote_options="default")
        return {name: table.column(name).combine_chunks() for name in table.column_names}
    plain: list[Mapping[str, Any]] = []
    for item in rows:
        plain += item.batch.slice(0, _SAMPLED_ROWS).to_pylist() if isinstance(item, Rows) else [item.values]
    names = dict.fromkeys(name for row in plain for name in row)
    return {name: [row.get(name) for row in plain] for name in names}


def _check_names(settings: Settings, columns: Mapping[str, Any]) -> None:
    asked = {*(settings.columns or ()), *settings.codecs, *settings.nullable}
    if missing := sorted(asked - set(columns)):
        raise InvalidInputError(f"there is no column {missing[0]!r}; the source has {', '.join(columns)}")


def _pictures(known: Mapping[str, Column], plain: Mapping[str, Any]) -> dict[str, Kind]:
    """The columns of pictures that come as bytes, by their kinds."""
    found: dict[str, Kind] = {}
    for name, values in plain.items():
        kind = known[name].kind if name in known else _guess(name, values)
        if isinstance(kind, Image):
            found[name] = kind
    return found


def _guess(name: str, values: Any) -> Kind | None:
    first = values.drop_null()[:1].to_pylist() if isinstance(values, pa.Array) else [v for v in values if v is not None]
    if not first or not isinstance(first[0], bytes | bytearray | memoryview):
        return None
    return infer_schema({name: values})[name].kind


def _column(name: str, values: Any, known: Mapping[str, ColumnLike], settings: Settings) -> Column:
    missing = values.null_count if isinstance(values, pa.Array) else sum(value is None for value in values)
    codec = settings.codecs.get(name)
    given = known.get(name)
    column = as_column(name, given) if given is not None else None
    changed = isinstance(values, list) and any(isinstance(value, np.ndarray) for value in values)
    if column is not None and isinstance(column.kind, Image) and changed:
        column = None  # it is a tensor now
    if column is None:
        [inferred] = infer_schema({name: values})
        column = Column(inferred.kind, nullable=inferred.nullable)
    kind = column.kind
    if isinstance(values, list) and any(isinstance(value, Link) for value in values) and not isinstance(kind, Linked):
        lengths = [value.length or 0 for value in values if isinstance(value, Link)]
        typical = max(1, sum(lengths) // len(lengths))
        kind = Linked(kind, typical)
        column = replace(column, page_bytes=max(_LEAST_LINKED_PAGE, _PLACE_BYTES * (_LINKED_PAGE_BYTES // typical)))
    if isinstance(kind, Image):
        kind = _image_kind(kind, codec, settings)
        codec = None if codec is None or codec.partition(":")[0] in IMAGE_CODECS else codec
    nullable = column.nullable or missing > 0 or name in settings.nullable
    return replace(column, kind=kind, nullable=nullable, codec=codec if codec is not None else column.codec)


def _image_kind(kind: Image, codec: str | None, settings: Settings) -> Image:
    if codec is not None and codec.partition(":")[0] in IMAGE_CODECS:
        kind = replace(kind, codec=codec)
    if settings.resize is not None and not isinstance(kind, Mask):
        kind = replace(kind, shape=(*settings.resize, 3))
    return kind


def _weigh(column: str, values: Any) -> Weighed | None:
    """What a few pictures weigh."""
    some = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    some = [bytes(value) for value in some if isinstance(value, bytes | bytearray | memoryview)][:_WEIGHED]
    pixels = []
    start = time.perf_counter()
    for value in some:
        try:
            image_size(value)
            pixels.append(decode_image(value).nbytes)
        except SampleError:
            continue
    took = time.perf_counter() - start
    if not pixels:
        return None
    return Weighed(column, float(np.mean([len(value) for value in some])), float(np.mean(pixels)), took / len(pixels))
