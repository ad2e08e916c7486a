"""Transform rows of a source into rows of the table, and derive the schema from a sample."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, ImageCodec, decode_image, decode_image_into
from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format import Column, ColumnLike, Schema, as_column, infer_schema, make_schema, with_inferred_shape
from penstock.format.kinds import Audio, Bytes, Image, Kind, Label, Link, Linked, List, Mask, Tensor, Text, any_shape
from penstock.ingest._options import IngestOptions, find_transform
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, RejectedFileError, Row, RowBatch, SourceItem, SourceScan, evenly_spaced
from penstock.storage import ObjectInfo, thread_map
from penstock.table import RowChunk, from_arrow

_CHUNK_ROWS = 1024
_CHUNK_BYTES = 14 << 20
"""About the size of one data file."""
_SAMPLED_FILES, _SAMPLED_ROWS, _SAMPLED_IMAGES = 8, 16, 16
_ARRAYS = (np.ndarray, memoryview)
_LINKED_PAGE_BYTES, _LINK_BYTES, _MIN_LINKED_PAGE_BYTES = 256 << 10, 120, 1024
"""Linked bytes that a page of links covers; approximate size of a stored link; smallest page of links."""


class RowTransformer:
    """Applies row options: the user's transform, selected columns, image sizes and codecs."""

    def __init__(self, options: IngestOptions, images: Mapping[str, Kind], known: Mapping[str, Kind]) -> None:
        """`images` are the image columns of the source, `known` the columns with known kinds."""
        self._options, self._known = options, known
        self._transform = None if options.transform is None else find_transform(options.transform)
        self._images = {
            name: kind
            for name, kind in images.items()
            if options.decode or options.image_size is not None or name in options.codecs
        }
        self.changed: set[str] = set()
        """Columns for which the user's transform returned other values than it got."""
        self._unchanged = self._transform is None and not self._images and options.columns is None

    def rows(self, items: Iterable[SourceItem]) -> Iterator[Row | RowBatch | Reject]:
        """The rows to store; a row that cannot be transformed becomes a `Reject`."""
        for item in items:
            if isinstance(item, RowBatch):
                if self._transform is None and not self._images:
                    yield RowBatch(item.name, self._select(item.batch))
                else:
                    names = (f"{item.name}, row {number}" for number in range(len(item.batch)))
                    rows = map(self._row, map(Row, names, self._to_dicts(item.batch)))
                    yield from (row for row in rows if row is not None)
            elif isinstance(item, Reject) or self._unchanged:
                yield item
            elif (row := self._row(item)) is not None:
                yield row

    def _to_dicts(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries for the user's function: tensors as numpy arrays, media as encoded bytes."""
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            kind = self._known.get(field.name) or as_column(field.name, field.type).kind
            columns.append(column.to_pylist() if _is_plain(kind) else _values(kind, column))
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
        if self._transform is not None:
            self.changed.update(name for name in values if values[name] is not row.values.get(name))
        try:
            for name, kind in self._images.items():
                if values.get(name) is not None:
                    values[name] = self._image(name, kind, values[name])
        except (SampleError, InvalidInputError) as error:
            return Reject(row.name, str(error))
        if self._options.columns is not None:
            values = {name: values[name] for name in self._options.columns if name in values}
        return Row(row.name, values)

    def _image(self, name: str, kind: Kind, value: Any) -> Any:
        pixels = value if isinstance(value, np.ndarray) else None
        size = self._options.image_size
        if size is not None and not isinstance(kind, Mask):
            if pixels is not None:
                value = ImageCodec("png").encode(pixels)
            pixels = np.empty((*size, 3), np.uint8)
            decode_image_into(value, pixels, resize=True)
        elif pixels is None:
            pixels = decode_image(value)
        if self._options.decode:
            return pixels
        codec = self._options.codecs.get(name) or (kind.codec if isinstance(kind, Image) else "png")
        return ImageCodec.parse(codec).encode(pixels)

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._options.columns is None:
            return batch
        return batch.select([name for name in self._options.columns if name in batch.schema.names])


def _is_plain(kind: Kind) -> bool:
    """Whether Arrow's Python values have the form in which a kind takes values: numbers, text and encoded bytes."""
    if isinstance(kind, List):
        return isinstance(kind.of, Image)
    if isinstance(kind, Tensor):
        return not kind.shape and kind.element.logical.kind not in "Mm"
    return isinstance(kind, Image | Audio | Bytes | Text | Label)


def _values(kind: Kind, column: pa.Array) -> list[Any]:
    values = kind.to_values(from_arrow(kind, column))
    return [value if valid else None for value, valid in zip(values, column.is_valid().to_pylist(), strict=True)]


def chunk_rows(
    items: Iterable[Row | RowBatch | Reject], reject: Callable[[str, str], None], shuffle: np.random.Generator | None
) -> Iterator[RowChunk]:
    """Group rows for writing, each chunk shuffled if there is a generator; calls `reject` for each reject."""
    names: list[str] = []
    rows: list[Mapping[str, Any]] = []
    size = 0
    for item in items:
        if isinstance(item, Reject):
            reject(*item)
            continue
        if isinstance(item, RowBatch):
            if shuffle is None:
                yield RowChunk(item.batch, item.name)
            else:
                order = shuffle.permutation(len(item.batch))
                yield RowChunk(item.batch.take(pa.array(order)), [f"{item.name}, row {row}" for row in order.tolist()])
            continue
        names.append(item.name)
        rows.append(item.values)
        size += sum(map(_value_bytes, item.values.values()))
        if len(rows) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield _make_chunk(rows, names, shuffle)
            names, rows, size = [], [], 0
    if rows:
        yield _make_chunk(rows, names, shuffle)


def _make_chunk(rows: list[Mapping[str, Any]], names: list[str], shuffle: np.random.Generator | None) -> RowChunk:
    order = range(len(rows)) if shuffle is None else shuffle.permutation(len(rows)).tolist()
    return RowChunk([rows[index] for index in order], [names[index] for index in order])


def _value_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, _ARRAYS) else len(value) if hasattr(value, "__len__") else 8


@dataclass(frozen=True)
class ImageCost:
    """Average cost of an image of a column, encoded and decoded."""

    column: str
    encoded_bytes: float
    decoded_bytes: float
    decode_s: float
    """Seconds of one core to decode one image."""


@dataclass(frozen=True)
class Sample:
    """What is derived from the first rows of a few files of a source."""

    schema: Schema
    images: Mapping[str, Kind]
    """The image columns of the source."""
    image_costs: tuple[ImageCost, ...]
    notes: tuple[str, ...] = ()
    """Columns to which a transform gave another kind, a sentence each."""


def sample_source(reader: SourceReader, scan: SourceScan, options: IngestOptions) -> Sample:
    """Read a few rows and derive the columns; raises `InvalidInputError` if no row can be read."""
    per_file = thread_map(
        lambda file: _sample_file(reader, scan, file),
        evenly_spaced(scan.files, _SAMPLED_FILES),
        max_workers=1 if reader.store.is_local else _SAMPLED_FILES,
    )
    items = list(chain.from_iterable(per_file))
    rejects = [item for item in items if isinstance(item, Reject)]
    rows = [item for item in items if not isinstance(item, Reject)]
    if not rows:
        reason = f": {rejects[0].name}: {rejects[0].reason}" if rejects else ""
        raise InvalidInputError(f"no row of {reader.store.uri} could be read{reason}")
    known = {name: _without_inferred_shape(as_column(name, column)) for name, column in scan.columns.items()}
    source_columns = _columns(rows)
    images = _image_columns(known, source_columns)
    transformer = RowTransformer(
        replace(options, columns=None), images, {name: column.kind for name, column in known.items()}
    )
    transformed = [item for item in transformer.rows(rows) if not isinstance(item, Reject)]
    if not transformed:
        raise InvalidInputError("the transform returned None for every sampled row")
    columns = _columns(transformed)
    _check_names(options, columns)
    selected = options.columns if options.columns is not None else tuple(columns)
    given, notes = _transformed_columns(known, source_columns, columns, transformer.changed)
    schema = make_schema({name: _column(name, columns[name], given, options) for name in selected})
    costs = (_image_cost(name, source_columns[name]) for name in images) if not options.link else ()
    selected_notes = tuple(note for name, note in notes.items() if name in selected)
    return Sample(schema, images, tuple(cost for cost in costs if cost is not None), selected_notes)


def _transformed_columns(
    known: Mapping[str, Column], source: Mapping[str, Any], columns: Mapping[str, Any], changed: Collection[str]
) -> tuple[dict[str, Column], dict[str, str]]:
    """The columns whose kinds the source decides, and notes on those to which a transform gave another kind."""
    of_source = {
        name: Column(any_shape(infer_schema({name: values})[name].kind), nullable=values.null_count > 0)
        for name, values in source.items()
        if isinstance(values, pa.Array) and name not in known
    } | dict(known)
    given: dict[str, Column] = {}
    notes: dict[str, str] = {}
    for name, column in of_source.items():
        if name not in changed or _keeps_kind(column.kind, columns.get(name, ())):
            given[name] = column
        else:
            kind = any_shape(infer_schema({name: columns[name]})[name].kind)
            notes[name] = f"column {name!r} is {column.kind} in the source and {kind} after the transform"
    return given, notes


def _keeps_kind(kind: Kind, values: Sequence[Any]) -> bool:
    """Whether values that a transform returned are of the kind that the column has in the source.

    A tensor keeps its kind only if its values have exactly that dtype and shape: others may fit only by chance.
    """
    present = [value for value in values if value is not None]
    try:
        if present and isinstance(kind, Tensor):
            return bool(infer_schema({"column": present})["column"].kind.arrow_type == kind.arrow_type)
        kind.to_array(present)
    except InvalidInputError:
        return False
    return True


def _sample_file(reader: SourceReader, scan: SourceScan, file: ObjectInfo) -> list[SourceItem]:
    try:
        return list(_first(scan.rows(reader, [file]), _SAMPLED_ROWS))
    except (SourceChangedError, RejectedFileError) as error:
        return [Reject(file.key, str(error))]


def _first(items: Iterator[SourceItem], count: int) -> Iterator[SourceItem]:
    """The first `count` rows and rejects."""
    for item in islice(items, count):
        if isinstance(item, RowBatch):
            yield RowBatch(item.name, item.batch.slice(0, count))
            count -= len(item.batch)
        else:
            yield item
            count -= 1
        if count <= 0:
            return


def _columns(rows: Sequence[Row | RowBatch]) -> dict[str, Any]:
    """Values by column: Arrow arrays if all rows are Arrow data, else lists."""
    batches = [item.batch.slice(0, _SAMPLED_ROWS) for item in rows if isinstance(item, RowBatch)]
    if len(batches) == len(rows):
        table = pa.concat_tables((pa.Table.from_batches([batch]) for batch in batches), promote_options="default")
        return {name: table.column(name).combine_chunks() for name in table.column_names}
    dicts: list[Mapping[str, Any]] = []
    for item in rows:
        dicts += item.batch.slice(0, _SAMPLED_ROWS).to_pylist() if isinstance(item, RowBatch) else [item.values]
    names = dict.fromkeys(name for row in dicts for name in row)
    return {name: [row.get(name) for row in dicts] for name in names}


def _check_names(options: IngestOptions, columns: Mapping[str, Any]) -> None:
    named = {*(options.columns or ()), *options.schema, *options.codecs, *options.nullable}
    if missing := sorted(named - set(columns)):
        raise InvalidInputError(f"there is no column {missing[0]!r}; the source has {', '.join(columns)}")


def _image_columns(known: Mapping[str, Column], columns: Mapping[str, Any]) -> dict[str, Kind]:
    """The kinds of the columns of encoded images."""
    found: dict[str, Kind] = {}
    for name, values in columns.items():
        kind = known[name].kind if name in known else _infer_kind(name, values)
        if isinstance(kind, Image):
            found[name] = kind
    return found


def _infer_kind(name: str, values: Any) -> Kind | None:
    first = values.drop_null()[:1].to_pylist() if isinstance(values, pa.Array) else [v for v in values if v is not None]
    if not first or not isinstance(first[0], bytes | bytearray | memoryview):
        return None
    return infer_schema({name: values})[name].kind


def _without_inferred_shape(column: Column) -> Column:
    """A column of a source; the sampled rows decide whether its images have one shape."""
    return replace(column, kind=any_shape(column.kind))


def _column(name: str, values: Any, known: Mapping[str, ColumnLike], options: IngestOptions) -> Column:
    missing = values.null_count if isinstance(values, pa.Array) else sum(value is None for value in values)
    codec = options.codecs.get(name)
    declared = options.declared.get(name)
    given = known.get(name)
    column = declared or (as_column(name, given) if given is not None else None)
    decoded = isinstance(values, list) and any(isinstance(value, np.ndarray) for value in values)
    if declared is None and column is not None and isinstance(column.kind, Image) and decoded:
        column = None  # infer the kind of the tensor
    if column is None:
        [inferred] = infer_schema({name: values})
        column = Column(inferred.kind, nullable=inferred.nullable)
    kind = column.kind
    if isinstance(values, list) and any(isinstance(value, Link) for value in values) and not isinstance(kind, Linked):
        lengths = [value.length or 0 for value in values if isinstance(value, Link)]
        mean = max(1, sum(lengths) // len(lengths))
        kind = Linked(kind, mean)
        column = replace(column, page_bytes=max(_MIN_LINKED_PAGE_BYTES, _LINK_BYTES * (_LINKED_PAGE_BYTES // mean)))
    if isinstance(kind, Image):
        if declared is None and (kind.shape is None or kind.inferred):
            kind = with_inferred_shape(kind, values.to_pylist() if isinstance(values, pa.Array) else values)
        kind = _image_kind(kind, codec, options)
        codec = None if codec is None or codec.partition(":")[0] in IMAGE_CODECS else codec
    nullable = column.nullable or (missing > 0 and declared is None) or name in options.nullable
    return replace(column, kind=kind, nullable=nullable, codec=codec if codec is not None else column.codec)


def _image_kind(kind: Image, codec: str | None, options: IngestOptions) -> Image:
    if codec is not None and codec.partition(":")[0] in IMAGE_CODECS:
        kind = replace(kind, codec=codec)
    if options.image_size is not None and not isinstance(kind, Mask):
        kind = replace(kind, shape=(*options.image_size, 3), inferred=False)
    return kind


def _image_cost(column: str, values: Any) -> ImageCost | None:
    """Measure a few images; None if none can be decoded."""
    images = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    images = [bytes(value) for value in images if isinstance(value, bytes | bytearray | memoryview)]
    images = images[:_SAMPLED_IMAGES]
    decoded_bytes = []
    start = time.perf_counter()
    for value in images:
        try:
            decoded_bytes.append(decode_image(value).nbytes)
        except SampleError:
            continue
    elapsed_s = time.perf_counter() - start
    if not decoded_bytes:
        return None
    encoded_mean = float(np.mean([len(value) for value in images]))
    return ImageCost(column, encoded_mean, float(np.mean(decoded_bytes)), elapsed_s / len(decoded_bytes))
