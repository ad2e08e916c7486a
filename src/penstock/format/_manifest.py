"""Manifests: the tree of nodes that lists the fragments of a table.

The root nodes are in the snapshot. A leaf lists fragments; an inner node lists nodes. A commit writes the leaves it
changes and their ancestors, so its size does not grow with the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from penstock.format._checksum import crc32c
from penstock.format._dtypes import numbers_of
from penstock.format._fragment import BlobUse, ChangedRows, DataFile, Fragment
from penstock.format._layout import corrupt_error, decoding, manifest_key
from penstock.format._leaf_checks import check_leaf, require
from penstock.format._sealed import member_names
from penstock.format._statistics import (
    PAGE_BOUNDS,
    STATISTICS,
    FilePageBounds,
    NodeStatistics,
    Statistics,
    union_statistics,
)
from penstock.types import Buffer, RowRange

MAX_LEVELS = 32
"""With the default of 32 nodes per node, eight levels hold a million million fragments."""
_NULLABLE = ("deleted", "low", "high", "bounds", "decoded_bytes")
_OPTIONAL = ("bounds", "decoded_bytes")
"""Members of a file that not every writer stores."""
_INT64 = range(1 << 63)
_SINGLE_THREADED = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A reference to a manifest, as stored in its parent, with totals of its subtree."""

    id: str
    level: int
    """0 for a leaf."""
    length: int
    crc: int
    fragments: int
    rows: int
    live: int
    bytes: int
    """Bytes of all data files and blobs."""
    first_id: int
    """Smallest row id."""
    end_id: int
    """Largest row id plus one."""
    statistics: NodeStatistics | None = field(default=None, compare=False)
    """Bounds that hold in the whole subtree; None if unknown."""

    @property
    def key(self) -> str:
        return manifest_key(self.id)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a node: fragments in a leaf, else child nodes."""

    level: int
    fragments: tuple[Fragment, ...] = ()
    nodes: tuple[Node, ...] = ()


_RANGE = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_CHANGED = pa.struct([("base", pa.string()), ("field", pa.int64()), ("rows", pa.binary())])
_BLOB = pa.struct([("id", pa.string()), ("length", pa.int64())])
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
        ("bounds", pa.list_(PAGE_BOUNDS)),
        ("decoded_bytes", pa.list_(pa.int64())),
    ]
)
LEAF_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("rows", pa.int64()),
        ("live", pa.int64()),
        ("row_ids", pa.list_(_RANGE)),
        ("deleted", pa.binary()),
        ("statistics", pa.list_(STATISTICS)),
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
NODE_MEMBERS = tuple(INNER_SCHEMA.names)
"""What every parent stores of a node."""
_NODE_STATISTICS = pa.list_(STATISTICS)


def encode_manifest(id: str, manifest: Manifest) -> tuple[Node, memoryview]:
    """Encode a manifest, and return the node for its parent."""
    if manifest.level:
        batch = _encode_nodes(manifest.nodes)
    else:
        batch = pa.RecordBatch.from_pylist([_fragment_row(fragment) for fragment in manifest.fragments], LEAF_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    node = node_for(id, manifest, length=len(data), crc=crc32c(data))
    return replace(node, statistics=_subtree_statistics(manifest)), data


def _encode_nodes(nodes: Sequence[Node]) -> pa.RecordBatch:
    columns = [pa.array([getattr(node, each.name) for node in nodes], each.type) for each in INNER_SCHEMA]
    rows = [[] if node.statistics is None else list(node.statistics.by_field.values()) for node in nodes]
    statistics = pa.array([[_members(each) for each in row] for row in rows], _NODE_STATISTICS)
    return pa.RecordBatch.from_arrays(
        [*columns, statistics], schema=INNER_SCHEMA.append(pa.field("statistics", _NODE_STATISTICS))
    )


def _subtree_statistics(manifest: Manifest) -> NodeStatistics | None:
    """Bounds of all live rows below a manifest."""
    parts = [() if node.statistics is None else node.statistics.by_field.values() for node in manifest.nodes]
    found = union_statistics([*parts, *(fragment.statistics for fragment in manifest.fragments if fragment.live)])
    return NodeStatistics.of(found) if found else None


def node_for(id: str, manifest: Manifest, *, length: int = 0, crc: int = 0) -> Node:
    """The node of a manifest; length and checksum are 0 if it is not encoded yet."""
    children: Sequence[Node | Fragment] = manifest.nodes or manifest.fragments
    id_ranges = [(node.first_id, node.end_id) for node in manifest.nodes]
    id_ranges += [(run.start, run.end) for fragment in manifest.fragments for run in fragment.row_ids]
    return Node(
        id=id,
        level=manifest.level,
        length=length,
        crc=crc,
        fragments=sum(node.fragments for node in manifest.nodes) + len(manifest.fragments),
        rows=sum(child.rows for child in children),
        live=sum(child.live for child in children),
        bytes=sum(child.bytes for child in children),
        first_id=min((start for start, _ in id_ranges), default=0),
        end_id=max((end for _, end in id_ranges), default=0),
    )


def decode_manifest(node: Node, data: Buffer, where: str) -> Manifest:
    """Verify and decode a manifest; raises `CorruptError`."""
    batch = open_manifest(node, data, where)
    with decoding(where):
        if not node.level:
            return Manifest(0, fragments=decode_fragments(batch))
        nodes = decode_nodes(batch.select(NODE_MEMBERS).to_pydict(), below=node.level)
        if len(batch.schema) > len(NODE_MEMBERS):
            lists = batch.column("statistics")
            ends, items = lists.offsets.to_pylist(), lists.values
            nodes = with_statistics(nodes, [items.slice(a, b - a) for a, b in pairwise(ends)])
        for name in ("fragments", "rows", "live", "bytes"):
            require(sum(getattr(child, name) for child in nodes) == getattr(node, name), f"{name} of its children")
        require(
            all(node.first_id <= child.first_id and child.end_id <= node.end_id for child in nodes), "their row ids"
        )
        return Manifest(node.level, nodes=nodes)


def decode_nodes(columns: Mapping[str, Sequence[Any]], *, below: int = MAX_LEVELS) -> tuple[Node, ...]:
    """Nodes from the columns of a snapshot or of an inner node; raises `ValueError` for an invalid one.

    Levels fall from parent to child, so that a tree is never deeper than its root says, and no node contains itself.
    """
    found = tuple(Node(*row) for row in zip(*(columns[name] for name in NODE_MEMBERS), strict=True))
    for node in found:
        id, *numbers = (getattr(node, name) for name in NODE_MEMBERS)
        require(type(id) is str and all(type(number) is int and number in _INT64 for number in numbers), "a node")
        require(node.level < below, "the level of a node")
        require(node.length > 0 and node.fragments > 0 and node.live <= node.rows, "the totals of a node")
    return found


def with_statistics(nodes: Sequence[Node], stored: Sequence[Any]) -> tuple[Node, ...]:
    """Nodes with their statistics as stored; raises `ValueError` unless there is one item for each node."""
    return tuple(
        replace(node, statistics=NodeStatistics(each)) if len(each) else node
        for node, each in zip(nodes, stored, strict=True)
    )


def open_manifest(node: Node, data: Buffer, where: str) -> pa.RecordBatch:
    """Verify a manifest, and return its record batch: one row per fragment or per child node.

    Raises `CorruptError`, also for content that disagrees with itself or with its parent: readers rely on it.
    """
    if len(data) != node.length or crc32c(data) != node.crc:
        raise corrupt_error(where, "its checksum does not match its parent")
    with decoding(where):
        # Callers decode many small manifests in parallel; Arrow's own threads would only add waits.
        file = pa.ipc.open_file(pa.py_buffer(data), options=_SINGLE_THREADED)
        batch = file.get_batch(0) if file.num_record_batches == 1 else _combined(file.read_all())
        batch.validate(full=True)
        batch = _as_schema(batch, _inner_schema(batch) if node.level else _leaf_schema(batch))
        if not node.level:
            ids = RowRange(node.first_id, node.end_id)
            totals = {name: getattr(node, name) for name in ("fragments", "rows", "live", "bytes")}
            check_leaf(batch, row_ids=ids, **totals)
        return batch


def _combined(table: pa.Table) -> pa.RecordBatch:
    return next(iter(table.combine_chunks().to_batches()), pa.RecordBatch.from_pylist([], table.schema))


def _inner_schema(batch: pa.RecordBatch) -> pa.Schema:
    """The columns to read of an inner node: not every writer stores statistics."""
    known = "statistics" in batch.schema.names
    return INNER_SCHEMA.append(pa.field("statistics", _NODE_STATISTICS)) if known else INNER_SCHEMA


def _leaf_schema(batch: pa.RecordBatch) -> pa.Schema:
    """The columns to read of a leaf, with the optional members that its files have."""
    if batch.schema.equals(LEAF_SCHEMA):
        return LEAF_SCHEMA
    files = batch.schema.field("files").type.value_type
    members = [known for known in _FILE if known.name not in _OPTIONAL or files.get_field_index(known.name) >= 0]
    return LEAF_SCHEMA.set(len(LEAF_SCHEMA) - 1, pa.field("files", pa.list_(pa.struct(members))))


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns and members of a schema, by name; raises for one that is missing, null or of another type."""
    if not batch.schema.equals(schema):
        columns = [batch.column(known.name).cast(known.type) for known in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    for known, column in zip(batch.schema, batch.columns, strict=True):
        _require_values(column, known.name)
    return batch


def _require_values(array: pa.Array, name: str) -> None:
    """Raise `ValueError` for a null that the format does not allow."""
    require(array.null_count == 0 or name in _NULLABLE, f"a null in {name}")
    if pa.types.is_list(array.type):
        _require_values(array.flatten(), name)
    elif pa.types.is_struct(array.type):
        for index, member in enumerate(array.type):
            _require_values(array.field(index), member.name)


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in member_names(type(value))}  # type: ignore[arg-type]  # a class is hashable


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
            "bounds": [] if file.bounds is None else file.bounds.stored.to_pylist(),
        }
        for file in fragment.files
    ]
    return row


def decode_fragments(batch: pa.RecordBatch) -> tuple[Fragment, ...]:
    """Decode rows of a leaf."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    files = _files(columns["files"].flatten())
    ends = numbers_of(columns["files"].offsets)
    scalars = batch.select(["id", "rows", "live", "row_ids", "deleted", "statistics"]).to_pylist()
    return tuple(
        Fragment(
            id=row["id"],
            rows=row["rows"],
            live=row["live"],
            row_ids=tuple(RowRange(**run) for run in row["row_ids"]),
            deleted=row["deleted"],
            statistics=tuple(Statistics(**bounds) for bounds in row["statistics"]),
            files=tuple(files[ends[index] - ends[0] : ends[index + 1] - ends[0]]),
        )
        for index, row in enumerate(scalars)
    )


def _files(array: pa.StructArray) -> list[DataFile]:
    """Page tables remain arrays: a large fragment has thousands of pages."""

    def lists(name: str) -> list[npt.NDArray[Any]]:
        column = array.field(name)
        offsets, values = numbers_of(column.offsets), numbers_of(column.values)
        return [values[a:b] for a, b in pairwise(offsets)]

    scalars = {name: array.field(name).to_pylist() for name in ("id", "length", "frame_crc", "row_start", "rows")}
    field_ids = [tuple(ids) for ids in array.field("fields").to_pylist()]
    changed = array.field("changed").to_pylist()
    blobs = array.field("blobs").to_pylist()
    pages = {name: lists(name) for name in ("page_rows", "page_offsets", "page_crcs", "value_starts")}
    bounds = _stored_bounds(array, pages["page_rows"])
    known = array.type.get_field_index("decoded_bytes") >= 0
    decoded = array.field("decoded_bytes").to_pylist() if known else [None] * len(array)
    return [
        DataFile(
            **{name: values[index] for name, values in scalars.items()},
            fields=field_ids[index],
            page_rows=pages["page_rows"][index],
            page_offsets=pages["page_offsets"][index],
            page_crcs=pages["page_crcs"][index],
            value_starts=pages["value_starts"][index].reshape(-1, len(field_ids[index])),
            changed=tuple(ChangedRows(**change) for change in changed[index]),
            blobs=tuple(BlobUse(**blob) for blob in blobs[index]),
            bounds=bounds[index],
            decoded_bytes=tuple(decoded[index] or ()),
        )
        for index in range(len(array))
    ]


def _stored_bounds(array: pa.StructArray, page_rows: Sequence[npt.NDArray[Any]]) -> list[FilePageBounds | None]:
    if array.type.get_field_index("bounds") < 0:
        return [None] * len(array)
    lists = array.field("bounds")
    ends, items = lists.offsets.to_pylist(), lists.values
    return [
        FilePageBounds(items.slice(a, b - a), len(rows)) if b > a else None
        for (a, b), rows in zip(pairwise(ends), page_rows, strict=True)
    ]
