"""Sizes of rows, from the statistics of the manifests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import Field, Manifest, numbers_of
from penstock.format.kinds import Linked
from penstock.storage import thread_map
from penstock.table._gather import fixed_column
from penstock.table._leaves import MANIFEST_READERS, Leaves, SortedRows, rows_between
from penstock.table._read import ROW_ID
from penstock.types import cached_property

_SAMPLED_LEAVES = 8

Floats = npt.NDArray[np.float64]
_FileSizes = tuple[int, Sequence[int], int, int, Sequence[int | None] | None]
"""Of a file: the index of its fragment, the ids of its fields, bytes, rows, and bytes of a decoded value by field."""


@dataclass(frozen=True)
class SizeGroups:
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

    @property
    def row_bytes(self) -> float:
        """Bytes of an average row, over all columns."""
        return max(1.0, sum(map(self.average, self.bytes)))

    def largest_decoded(self, field_id: int) -> float | None:
        """Bytes of a decoded value in the group where they are largest; None if unknown in one of them."""
        sizes = np.maximum(self.decoded[field_id], self.bytes[field_id])[self.rows > 0]
        return None if np.isnan(sizes).any() else float(sizes.max(initial=0.0))

    def largest(self, count: float) -> float:
        """Bytes of the `count` largest rows, over all columns."""
        sizes = sum(self.bytes.values(), np.zeros(len(self.rows)))
        order = np.argsort(-sizes)
        ends = np.minimum(np.cumsum(self.rows[order]), count)
        return max(count, float(np.diff(ends, prepend=0.0) @ sizes[order]))


class RowSizes:
    """Sizes of some rows of a table; of a large table, they are estimated from a few leaves."""

    def __init__(self, leaves: Leaves, rows: SortedRows, count: int) -> None:
        """`count` is the number of rows."""
        self._leaves, self._rows, self._count = leaves, rows, count

    @cached_property
    def stored(self) -> SizeGroups:
        """Bytes in files, by fragment."""
        leaves, schema = self._leaves, self._leaves.reader.snapshot.schema
        known = {field.id: field.fixed_row_bytes for field in schema.fields if field.fixed_row_bytes}
        variable = [field.id for field in leaves.fields if field.id not in known]
        sections: list[int] = []
        if variable:
            used = np.flatnonzero(leaves.count(self._rows))
            sections = used[:: max(1, len(used) // _SAMPLED_LEAVES) if leaves.many else 1].tolist()
        loaded = thread_map(leaves.load, sections, max_workers=MANIFEST_READERS)
        counts = [len(rows_between(self._rows, *bounds)) for _, starts in loaded for bounds in pairwise(starts)]
        sizes = [_leaf_sizes(leaf, variable, known) for leaf, _ in loaded] if any(counts) else []
        rows = np.array(counts if sizes else [self._count], np.float64)
        variable_sizes = {
            field_id: np.concatenate([leaf[field_id] for leaf in sizes], axis=1) for field_id in variable if sizes
        }
        zeros = np.zeros((2, 1))
        stored = {
            field.id: np.full(len(rows), float(known[field.id]))
            if field.id in known
            else variable_sizes.get(field.id, zeros)[0] + linked_bytes(field)
            for field in leaves.fields
        }
        return SizeGroups(rows, stored, {field_id: variable_sizes.get(field_id, zeros)[1] for field_id in variable})

    @cached_property
    def in_memory(self) -> SizeGroups:
        """Bytes in memory, where compressed columns of a fixed shape have their full size."""
        sizes: dict[int, Floats] = {}
        for name in self._leaves.names:
            field = None if name == ROW_ID else self._leaves.reader.snapshot.schema[name]
            column = fixed_column(name, field)
            stored = np.zeros(len(self.stored.rows)) if field is None else self.stored.bytes[field.id]
            sizes[0 if field is None else field.id] = np.maximum(stored, 0 if column is None else column.row_bytes)
        return SizeGroups(self.stored.rows, sizes)

    @cached_property
    def heaviest(self) -> Field | None:
        """The column with most bytes; blocks are split at its pages."""
        return max(self._leaves.fields, key=lambda field: self.stored.average(field.id), default=None)


def _leaf_sizes(
    leaf: Manifest | pa.RecordBatch, field_ids: Sequence[int], fixed_bytes: Mapping[int, int]
) -> dict[int, Floats]:
    """For some columns the bytes of a row in each fragment of a leaf, stored and decoded; NaN where that is unknown.

    Columns that share a file are taken to be equally large, without those of known size, which are in `fixed_bytes`.
    """
    rows, files = _files_of(leaf)
    sizes = {field_id: np.zeros((2, len(rows))) for field_id in field_ids}
    for fragment, stored_ids, length, count, decoded in files:
        ids = [field_id for field_id in stored_ids if field_id > 0]  # others are references to blobs
        known = sum(fixed_bytes.get(field_id, 0) for field_id in ids)
        share = max(0.0, length - known * count) / max(1, sum(field_id not in fixed_bytes for field_id in ids))
        decoded_sizes = dict(zip(stored_ids, decoded or (), strict=False))
        for field_id in sizes.keys() & ids:
            size = decoded_sizes.get(field_id)
            sizes[field_id][0, fragment] += share
            sizes[field_id][1, fragment] += np.nan if size is None else size
    return {field_id: size / np.maximum(1, rows) for field_id, size in sizes.items()}


def _files_of(leaf: Manifest | pa.RecordBatch) -> tuple[npt.NDArray[np.int64], Iterable[_FileSizes]]:
    """The rows of each fragment of a leaf, and the sizes of all files."""
    if isinstance(leaf, Manifest):
        return np.array([fragment.rows for fragment in leaf.fragments], np.int64), [
            (number, file.fields, file.length + sum(blob.length for blob in file.blobs), file.rows, file.decoded_bytes)
            for number, fragment in enumerate(leaf.fragments)
            for file in fragment.files
        ]
    rows, column = numbers_of(leaf.column("rows")), leaf.column("files")
    files = column.flatten()
    lengths = numbers_of(files.field("length")) + _blob_bytes(files.field("blobs"))
    fields = files.field("fields").to_pylist()
    decoded = [None] * len(fields)
    if files.type.get_field_index("decoded_bytes") >= 0:
        decoded = files.field("decoded_bytes").to_pylist()
    fragments = np.repeat(np.arange(len(rows)), np.diff(numbers_of(column.offsets)))
    return rows, zip(fragments, fields, lengths, numbers_of(files.field("rows")), decoded, strict=True)


def linked_bytes(field: Field | None) -> int:
    """Approximate bytes of the target of a link."""
    return field.kind.typical_bytes if field is not None and isinstance(field.kind, Linked) else 0


def _blob_bytes(blobs: pa.ListArray) -> npt.NDArray[np.int64]:
    """Bytes of the blobs of each file."""
    ends = np.cumsum(np.append(0, numbers_of(blobs.values.field("length"))))
    offsets = numbers_of(blobs.offsets)
    return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]], np.int64)
