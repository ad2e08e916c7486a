"""Manifests: the tree of nodes that lists the fragments of a table.

The root nodes are in the snapshot. A leaf lists fragments; an inner node lists nodes. A commit writes the leaves it
changes and their ancestors, so its size does not grow with the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format._checksum import crc32c
from penstock.format._fragment import BlobUse, ChangedRows, DataFile, Fragment, Statistics
from penstock.format._layout import corrupt_error, manifest_key
from penstock.format._sealed import from_members, member_names
from penstock.types import Buffer, RowRange

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
    """Encode a manifest, and return the node for its parent."""
    if manifest.level:
        batch = pa.RecordBatch.from_pylist([_members(node) for node in manifest.nodes], INNER_SCHEMA)
    else:
        batch = pa.RecordBatch.from_pylist([_fragment_row(fragment) for fragment in manifest.fragments], LEAF_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    return node_for(id, manifest, length=len(data), crc=crc32c(data)), data


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
    if node.level:
        return Manifest(node.level, nodes=_nodes(batch))
    return Manifest(0, fragments=decode_fragments(batch))


def _nodes(batch: pa.RecordBatch) -> tuple[Node, ...]:
    """Column by column: planning reads all inner nodes, and a table of 10 PB has ten thousand of them."""
    names = [name for name in member_names(Node) if name in batch.schema.names]
    columns = (batch.column(name).to_pylist() for name in names)
    return tuple(Node(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def open_manifest(node: Node, data: Buffer, where: str) -> pa.RecordBatch:
    """Verify a manifest, and return its record batch: one row per fragment or per child node."""
    if len(data) != node.length or crc32c(data) != node.crc:
        raise corrupt_error(where, "its checksum does not match its parent")
    # Callers decode many small manifests in parallel; Arrow's own threads would only add waits.
    file = pa.ipc.open_file(pa.py_buffer(data), options=_SINGLE_THREADED)
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
    """Decode rows of a leaf."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    files = _files(columns["files"].flatten())
    ends = np.asarray(columns["files"].offsets)
    scalars = batch.select(["id", "rows", "live", "row_ids", "deleted", "statistics"]).to_pylist()
    return tuple(
        Fragment(
            id=row["id"],
            rows=row["rows"],
            live=row["live"],
            row_ids=tuple(from_members(RowRange, run) for run in row["row_ids"]),
            deleted=row["deleted"],
            statistics=tuple(from_members(Statistics, bounds) for bounds in row["statistics"]),
            files=tuple(files[ends[index] - ends[0] : ends[index + 1] - ends[0]]),
        )
        for index, row in enumerate(scalars)
    )


def _files(array: pa.StructArray) -> list[DataFile]:
    """Page tables remain arrays: a large fragment has thousands of pages."""

    def lists(name: str) -> list[npt.NDArray[Any]]:
        column = array.field(name)
        offsets, values = np.asarray(column.offsets), np.asarray(column.values)
        return [values[a:b] for a, b in pairwise(offsets)]

    scalars = {name: array.field(name).to_pylist() for name in ("id", "length", "frame_crc", "row_start", "rows")}
    field_ids = [tuple(ids) for ids in array.field("fields").to_pylist()]
    changed = array.field("changed").to_pylist()
    blobs = array.field("blobs").to_pylist()
    pages = {name: lists(name) for name in ("page_rows", "page_offsets", "page_crcs", "value_starts")}
    return [
        DataFile(
            **{name: values[index] for name, values in scalars.items()},
            fields=field_ids[index],
            page_rows=pages["page_rows"][index],
            page_offsets=pages["page_offsets"][index],
            page_crcs=pages["page_crcs"][index],
            value_starts=pages["value_starts"][index].reshape(-1, len(field_ids[index])),
            changed=tuple(from_members(ChangedRows, change) for change in changed[index]),
            blobs=tuple(from_members(BlobUse, blob) for blob in blobs[index]),
        )
        for index in range(len(array))
    ]
