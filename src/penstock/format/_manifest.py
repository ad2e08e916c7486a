"""Manifests: which fragments a table has, and which files, pages and checksums they have.

Manifests form a tree whose top is in the snapshot. A leaf describes fragments; an inner node describes other nodes. A
commit writes the leaves it changes and the path above them, so what it writes does not grow with the table.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format._checksum import crc32c
from penstock.format._layout import damaged, data_key, manifest_key
from penstock.format._sealed import known, member_names
from penstock.types import Buffer, ByteRange, RowRange, cached_property


@dataclass(frozen=True, slots=True)
class Changed:
    """Which values of a file differ from those of the file it took the place of, now or some updates ago.

    A field of which nothing is said for a base is the same there.
    """

    base: str
    """Id of the file that was there before; empty where the field had its fill value."""
    field: int
    """The field that differs; 0 where none does."""
    rows: bytes
    """Bitmap over the file's rows, least significant bit first; empty where none differs."""


@dataclass(frozen=True, slots=True)
class BlobUse:
    """A blob that a file's pages refer to, so that nobody has to read them to know."""

    id: str
    length: int


class BareRun:
    """Pages of one column, each a head and then values: where those lie if all heads lie together, and all values."""

    __slots__ = ("heads", "values", "values_crc")

    def __init__(self, heads: Sequence[slice], values: Sequence[slice]) -> None:
        self.heads, self.values = heads, values
        self.values_crc: int | None = None
        """The checksum of the values, once some have been read and verified."""


def _behind(sizes: npt.NDArray[np.int64]) -> list[slice]:
    """Where things of these sizes lie, one behind the other."""
    return [slice(*bounds) for bounds in pairwise([0, *np.cumsum(sizes).tolist()])]


@dataclass(frozen=True, eq=False)
class DataFile:
    """One data file: a range of a fragment's rows, some of its columns."""

    id: str
    length: int
    frame_crc: int
    """Checksum of the bytes before the first page followed by those after the last."""
    fields: tuple[int, ...]
    """What each Arrow column holds: a field id, or minus a field id for the references to that field's blobs."""
    row_start: int
    """First row, counted in the fragment."""
    rows: int
    page_rows: npt.NDArray[np.int32]
    page_offsets: npt.NDArray[np.int64]
    """Where each page starts, and where the last one ends."""
    page_crcs: npt.NDArray[np.uint32]
    value_starts: npt.NDArray[np.int32]
    """Per page and column: where in the page the values start, -1 where the page must be parsed."""
    changed: tuple[Changed, ...] = ()
    blobs: tuple[BlobUse, ...] = ()

    @property
    def key(self) -> str:
        return data_key(self.id)

    @property
    def row_end(self) -> int:
        return self.row_start + self.rows

    @cached_property
    def page_ends(self) -> npt.NDArray[np.int64]:
        """Row, counted in the file, behind each page."""
        return np.cumsum(self.page_rows, dtype=np.int64)

    @cached_property
    def offsets(self) -> list[int]:
        """`page_offsets` as plain numbers, for the loops over pages."""
        offsets: list[int] = self.page_offsets.tolist()
        return offsets

    @cached_property
    def row_ends(self) -> list[int]:
        """`page_ends` as plain numbers, likewise."""
        ends: list[int] = self.page_ends.tolist()
        return ends

    @cached_property
    def bare_row_bytes(self) -> int | None:
        """Bytes of a row, where the file has one column and each page is its head and then values, and nothing else."""
        if len(self.fields) != 1 or not len(self.page_rows) or (self.value_starts < 0).any():
            return None
        sizes = np.diff(self.page_offsets) - self.value_starts[:, 0]
        width = int(sizes[0]) // max(1, int(self.page_rows[0]))
        return width if (sizes == self.page_rows.astype(np.int64) * width).all() else None

    @cached_property
    def _bare_runs(self) -> dict[tuple[int, int], "BareRun"]:
        return {}

    def bare_run(self, first: int, end: int) -> "BareRun":
        """Some pages of a file whose pages are bare; worked out once, because they are read together in every epoch."""
        known = self._bare_runs.get((first, end))
        if known is None:
            sizes: npt.NDArray[np.int64] = np.diff(self.page_offsets[first : end + 1])
            heads = self.value_starts[first:end, 0].astype(np.int64)
            known = self._bare_runs[first, end] = BareRun(_behind(heads), _behind(sizes - heads))
        return known

    def page_range(self, page: int) -> ByteRange:
        return ByteRange(self.offsets[page], self.offsets[page + 1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataFile) and (self.id, self.row_start) == (other.id, other.row_start)

    def __hash__(self) -> int:
        return hash(self.id)


_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
_row_start, _row_end = attrgetter("row_start"), attrgetter("row_end")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bounds of a column's values in a fragment; they hold, but need not be tight."""

    field: int
    nulls: int
    low: str | None
    """JSON of a value that no other is below; None where unknown."""
    high: str | None

    def joined(self, other: "Statistics | None") -> "Statistics":
        """Bounds of both."""
        if other is None:
            return self
        return Statistics(
            self.field, self.nulls + other.nulls, _pick(min, self.low, other.low), _pick(max, self.high, other.high)
        )


def _pick(choose: Callable[..., Any], one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return None
    return json.dumps(choose(json.loads(one), json.loads(other)))


@dataclass(frozen=True)
class Fragment:
    """A run of rows: the files that hold a field cover all of them once, or there are none (see `Field.fill`)."""

    id: int
    rows: int
    """Rows in the files, deleted ones included."""
    row_ids: tuple[RowRange, ...]
    """Ids of the rows in order, as ranges."""
    files: tuple[DataFile, ...]
    deleted: bytes | None = None
    """Bitmap over the rows, least significant bit first; None where none is deleted."""
    live: int = -1
    statistics: tuple[Statistics, ...] = ()

    def __post_init__(self) -> None:
        if self.live < 0:
            object.__setattr__(self, "live", self.rows - int(self.deleted_rows.sum()))

    @property
    def deleted_rows(self) -> npt.NDArray[np.bool_]:
        if self.deleted is None:
            return np.zeros(self.rows, bool)
        return unpack_bitmap(self.deleted, self.rows)

    @cached_property
    def live_rows(self) -> npt.NDArray[np.int64]:
        """Places of the rows that are not deleted."""
        return np.arange(self.rows) if self.deleted is None else np.flatnonzero(~self.deleted_rows)

    @property
    def all_row_ids(self) -> npt.NDArray[np.int64]:
        """The id of every row, deleted ones included."""
        parts = [np.arange(run.start, run.end, dtype=np.int64) for run in self.row_ids]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @property
    def bytes(self) -> int:
        """Length of all files, and of the blobs they refer to."""
        return sum(file.length + sum(blob.length for blob in file.blobs) for file in self.files)

    def row_ids_at(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ids of some rows."""
        starts = np.array([run.start for run in self.row_ids], np.int64)
        ends = np.cumsum([run.count for run in self.row_ids], dtype=np.int64)
        runs = np.searchsorted(ends, rows, side="right")
        before = np.concatenate([[0], ends[:-1]])
        return np.asarray(starts[runs] + rows - before[runs], np.int64) if len(rows) else np.zeros(0, np.int64)

    def files_of(self, field_id: int) -> tuple[DataFile, ...]:
        """The files that hold a field, in row order."""
        return self._by_field.get(field_id, ())

    def files_between(self, field_id: int, start: int, end: int) -> tuple[DataFile, ...]:
        """The files that hold a field of rows from `start` to `end`."""
        files = self.files_of(field_id)
        first = bisect_right(files, start, key=_row_end)
        return files[first : bisect_left(files, end, lo=first, key=_row_start)]

    @cached_property
    def _by_field(self) -> dict[int, tuple[DataFile, ...]]:
        found: dict[int, list[DataFile]] = {}
        for file in sorted(self.files, key=lambda file: file.row_start):
            for field_id in file.fields:
                found.setdefault(field_id, []).append(file)
        return {field_id: tuple(files) for field_id, files in found.items()}

    def without_rows(self, gone: npt.NDArray[np.bool_]) -> "Fragment":
        """The same fragment with more rows deleted."""
        return replace(self, deleted=pack_bitmap(self.deleted_rows | gone), live=-1)


@dataclass(frozen=True, slots=True)
class Node:
    """A manifest as its parent sees it."""

    id: str
    level: int
    """0 for a leaf."""
    length: int
    crc: int
    fragments: int
    rows: int
    live: int
    bytes: int
    """Length of all data files and blobs below."""
    first_id: int
    """Smallest row id below."""
    end_id: int
    """One more than the largest."""

    @property
    def key(self) -> str:
        return manifest_key(self.id)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a node: fragments in a leaf, nodes elsewhere."""

    level: int
    fragments: tuple[Fragment, ...] = ()
    nodes: tuple[Node, ...] = field(default=())


def pack_bitmap(rows: npt.NDArray[np.bool_]) -> bytes:
    """Bits, least significant first."""
    return np.packbits(rows, bitorder="little").tobytes()


def unpack_bitmap(bits: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Undo `pack_bitmap`; nothing stands for no bits set."""
    if not bits:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(bool)


_RANGE = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_CHANGED = pa.struct([("base", pa.string()), ("field", pa.int64()), ("rows", pa.binary())])
_BLOB = pa.struct([("id", pa.string()), ("length", pa.int64())])
_STATISTICS = pa.struct([("field", pa.int64()), ("nulls", pa.int64()), ("low", pa.string()), ("high", pa.string())])
_FILE = pa.struct(
    [
        ("id", pa.string()),
        ("length", pa.int64()),
        ("frame_crc", pa.uint32()),
        ("fields", pa.list_(pa.int64())),
        ("row_start", pa.int64()),
        ("rows", pa.int64()),
        ("page_rows", pa.list_(pa.int32())),
        ("page_offsets", pa.list_(pa.int64())),
        ("page_crcs", pa.list_(pa.uint32())),
        ("value_starts", pa.list_(pa.int32())),
        ("changed", pa.list_(_CHANGED)),
        ("blobs", pa.list_(_BLOB)),
    ]
)
LEAF_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("rows", pa.int64()),
        ("live", pa.int64()),
        ("row_ids", pa.list_(_RANGE)),
        ("deleted", pa.binary()),
        ("statistics", pa.list_(_STATISTICS)),
        ("files", pa.list_(_FILE)),
    ]
)
INNER_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("level", pa.int32()),
        ("length", pa.int64()),
        ("crc", pa.uint32()),
        ("fragments", pa.int64()),
        ("rows", pa.int64()),
        ("live", pa.int64()),
        ("bytes", pa.int64()),
        ("first_id", pa.int64()),
        ("end_id", pa.int64()),
    ]
)


def encode_manifest(id: str, manifest: Manifest) -> tuple[Node, memoryview]:
    """Serialise a manifest, and describe it for its parent."""
    if manifest.level:
        batch = pa.RecordBatch.from_pylist([_members(node) for node in manifest.nodes], INNER_SCHEMA)
    else:
        batch = pa.RecordBatch.from_pylist([_fragment_row(fragment) for fragment in manifest.fragments], LEAF_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    return describe(id, manifest, length=len(data), crc=crc32c(data)), data


def describe(id: str, manifest: Manifest, *, length: int = 0, crc: int = 0) -> Node:
    """A manifest as its parent sees it; one that is not stored yet has no length."""
    below: Sequence[Node | Fragment] = manifest.nodes or manifest.fragments
    spans = [(node.first_id, node.end_id) for node in manifest.nodes]
    spans += [(run.start, run.end) for fragment in manifest.fragments for run in fragment.row_ids]
    return Node(
        id=id,
        level=manifest.level,
        length=length,
        crc=crc,
        fragments=sum(node.fragments for node in manifest.nodes) + len(manifest.fragments),
        rows=sum(part.rows for part in below),
        live=sum(part.live for part in below),
        bytes=sum(part.bytes for part in below),
        first_id=min((start for start, _ in spans), default=0),
        end_id=max((end for _, end in spans), default=0),
    )


def decode_manifest(node: Node, data: Buffer, where: str) -> Manifest:
    """Verify and read a manifest."""
    batch = open_manifest(node, data, where)
    if node.level:
        return Manifest(node.level, nodes=_nodes(batch))
    return Manifest(0, fragments=decode_fragments(batch))


def _nodes(batch: pa.RecordBatch) -> tuple[Node, ...]:
    """By columns: ten petabytes have ten thousand of these manifests, and a plan reads them all."""
    there = [name for name in member_names(Node) if name in batch.schema.names]
    columns = (batch.column(name).to_pylist() for name in there)
    return tuple(Node(**dict(zip(there, row, strict=True))) for row in zip(*columns, strict=True))


def open_manifest(node: Node, data: Buffer, where: str) -> pa.RecordBatch:
    """Verify a manifest, and read it as it is: a row for each fragment, or for each node."""
    if len(data) != node.length or crc32c(data) != node.crc:
        raise damaged(where, "its checksum is not the one its parent has")
    # A manifest is small, and many are read at once: Arrow's own threads would only have to be waited for.
    file = pa.ipc.open_file(pa.py_buffer(data), options=_IN_THIS_THREAD)
    if file.num_record_batches == 1:
        return file.get_batch(0)
    table = file.read_all().combine_chunks()
    return next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], table.schema))


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in member_names(type(value))}


def _fragment_row(fragment: Fragment) -> dict[str, Any]:
    row = _members(fragment)
    row["row_ids"] = [_members(run) for run in fragment.row_ids]
    row["statistics"] = [_members(bounds) for bounds in fragment.statistics]
    row["files"] = [
        {
            **_members(file),
            "value_starts": file.value_starts.reshape(-1),
            "changed": [_members(change) for change in file.changed],
            "blobs": [_members(blob) for blob in file.blobs],
        }
        for file in fragment.files
    ]
    return row


def decode_fragments(batch: pa.RecordBatch) -> tuple[Fragment, ...]:
    """The fragments that rows of a leaf describe."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    files = _files(columns["files"].flatten())
    ends = np.asarray(columns["files"].offsets)
    plain = batch.select(["id", "rows", "live", "row_ids", "deleted", "statistics"]).to_pylist()
    return tuple(
        Fragment(
            id=row["id"],
            rows=row["rows"],
            live=row["live"],
            row_ids=tuple(known(RowRange, run) for run in row["row_ids"]),
            deleted=row["deleted"],
            statistics=tuple(known(Statistics, bounds) for bounds in row["statistics"]),
            files=tuple(files[ends[index] - ends[0] : ends[index + 1] - ends[0]]),
        )
        for index, row in enumerate(plain)
    )


def _files(array: pa.StructArray) -> list[DataFile]:
    """Page tables stay arrays: a large fragment has thousands of pages."""

    def lists(name: str) -> list[npt.NDArray[Any]]:
        column = array.field(name)
        offsets, values = np.asarray(column.offsets), np.asarray(column.values)
        return [values[a:b] for a, b in pairwise(offsets)]

    plain = {name: array.field(name).to_pylist() for name in ("id", "length", "frame_crc", "row_start", "rows")}
    held = [tuple(ids) for ids in array.field("fields").to_pylist()]
    changed = array.field("changed").to_pylist()
    blobs = array.field("blobs").to_pylist()
    pages = {name: lists(name) for name in ("page_rows", "page_offsets", "page_crcs", "value_starts")}
    return [
        DataFile(
            **{name: values[index] for name, values in plain.items()},
            fields=held[index],
            page_rows=pages["page_rows"][index],
            page_offsets=pages["page_offsets"][index],
            page_crcs=pages["page_crcs"][index],
            value_starts=pages["value_starts"][index].reshape(-1, len(held[index])),
            changed=tuple(known(Changed, change) for change in changed[index]),
            blobs=tuple(known(BlobUse, blob) for blob in blobs[index]),
        )
        for index in range(len(array))
    ]
