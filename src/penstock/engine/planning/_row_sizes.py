"""Sizes of rows, from the statistics of the manifests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import Manifest, Node

_MANY_FRAGMENTS, _TINY_FRAGMENT_BYTES = 100, 1 << 20

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowSizes:
    """Approximate bytes of rows, in groups such as fragments."""

    rows: Floats
    """Selected rows of each group."""
    bytes: dict[int, Floats]
    """Bytes of a row in each group, by field id."""
    decoded: dict[int, Floats] = field(default_factory=dict)
    """The same once decoded, of columns of images; NaN where that is unknown."""

    def average(self, field_id: int) -> float:
        """Bytes of an average row of a column."""
        return float(self.rows @ self.bytes[field_id]) / max(1.0, float(self.rows.sum()))

    def largest_decoded(self, field_id: int) -> float | None:
        """Bytes of a decoded value in the group where they are largest; None if unknown in one of them."""
        sizes = np.maximum(self.decoded[field_id], self.bytes[field_id])[self.rows > 0]
        return None if np.isnan(sizes).any() else float(sizes.max(initial=0.0))

    def largest(self, count: float) -> float:
        """Bytes of the `count` largest rows, over all columns."""
        sizes = sum(self.bytes.values(), np.zeros(len(self.rows)))
        order = np.argsort(-sizes)
        ends = np.minimum(np.cumsum(self.rows[order]), count)
        return float(np.diff(ends, prepend=0.0) @ sizes[order])


def leaf_sizes(
    leaf: Manifest | pa.RecordBatch, field_ids: Sequence[int], fixed_bytes: Mapping[int, int]
) -> tuple[dict[int, Floats], dict[int, Floats]]:
    """For each fragment of a leaf the bytes of a row, by field id, as stored and decoded (NaN if unknown).

    `fixed_bytes` has the columns of known size. Columns of variable size that share a file are taken to be equally
    large.
    """
    if isinstance(leaf, Manifest):
        rows = np.array([fragment.rows for fragment in leaf.fragments], np.int64)
        files = [(n, file) for n, fragment in enumerate(leaf.fragments) for file in fragment.files]
        fragment_of = np.array([number for number, _ in files], np.int64)
        lengths = np.array([file.length + sum(blob.length for blob in file.blobs) for _, file in files], np.float64)
        file_rows = np.array([file.rows for _, file in files], np.int64)
        fields: Sequence[Sequence[int]] = [file.fields for _, file in files]
        decoded: Sequence[Sequence[int | None] | None] = [file.decoded_bytes for _, file in files]
    else:
        rows = leaf.column("rows").to_numpy()
        column = leaf.column("files")
        fragment_of = np.repeat(np.arange(len(rows)), np.diff(np.asarray(column.offsets)))
        stored = column.flatten()
        lengths = stored.field("length").to_numpy() + _blob_bytes(stored.field("blobs"))
        file_rows = stored.field("rows").to_numpy()
        fields = stored.field("fields").to_pylist()
        known_sizes = stored.type.get_field_index("decoded_bytes") >= 0
        decoded = stored.field("decoded_bytes").to_pylist() if known_sizes else [None] * len(fields)
    found, whole = ({field_id: np.zeros(len(rows)) for field_id in field_ids} for _ in range(2))
    for number, (stored_ids, length, count) in enumerate(zip(fields, lengths, file_rows, strict=True)):
        ids = [field_id for field_id in stored_ids if field_id > 0]  # others are references to blobs
        known = sum(fixed_bytes.get(field_id, 0) for field_id in ids)
        share = max(0.0, length - known * count) / max(1, sum(field_id not in fixed_bytes for field_id in ids))
        decoded_size = dict(zip(stored_ids, decoded[number] or (), strict=False))
        for field_id in ids:
            if field_id in found:
                found[field_id][fragment_of[number]] += share
                size = decoded_size.get(field_id)
                whole[field_id][fragment_of[number]] += np.nan if size is None else size
    return _per_row(found, rows), _per_row(whole, rows)


def _per_row(sizes: Mapping[int, Floats], rows: npt.NDArray[np.int64]) -> dict[int, Floats]:
    return {field_id: total / np.maximum(1, rows) for field_id, total in sizes.items()}


def _blob_bytes(blobs: pa.ListArray) -> npt.NDArray[np.int64]:
    """Bytes of the blobs of each file."""
    ends = np.cumsum(np.append(0, blobs.values.field("length").to_numpy()))
    offsets = np.asarray(blobs.offsets)
    return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]], np.int64)


def compaction_advice(uri: str, nodes: Sequence[Node]) -> list[str]:
    """A note for users of a table with many tiny fragments; none for others."""
    fragments, size = sum(node.fragments for node in nodes), sum(node.bytes for node in nodes)
    if fragments < _MANY_FRAGMENTS or size >= fragments * _TINY_FRAGMENT_BYTES:
        return []
    return [
        f"the table has {fragments:,} fragments of {size / fragments / 1e3:,.0f} kB, each of which costs time and a "
        f"request: merge them with penstock.compact({uri!r})"
    ]
