"""Turns rows of the window into batches: gather, decode, replace bad rows, the user's functions."""

from penstock.engine.assembly._batch_builder import BatchAssembler, BuiltBatches, Failure, Placement
from penstock.engine.assembly._collate_windows import shared_image_shapes
from penstock.engine.assembly._columns import PAD, SOURCE, ColumnShape, MixedColumns, MixedMemory, Part, sample_shapes
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._formatter import (
    BatchFormatter,
    ConvertedFormatter,
    Jagged,
    RowKeys,
    accepts_generator,
    ragged_columns,
    samples_of,
    writable,
)
from penstock.engine.assembly._rows import BadRowsError, GatheredRows, SpanGatherer, TableRows, new_collator
from penstock.engine.assembly._values import array_bytes, has_lists, map_leaves

__all__ = [
    "PAD",
    "SOURCE",
    "BadRowsError",
    "BatchAssembler",
    "BatchFormatter",
    "BuiltBatches",
    "ColumnShape",
    "Columns",
    "ConvertedFormatter",
    "Failure",
    "GatheredRows",
    "Jagged",
    "MixedColumns",
    "MixedMemory",
    "Part",
    "Placement",
    "RowKeys",
    "SpanGatherer",
    "TableRows",
    "accepts_generator",
    "array_bytes",
    "has_lists",
    "map_leaves",
    "new_collator",
    "ragged_columns",
    "sample_shapes",
    "samples_of",
    "shared_image_shapes",
    "writable",
]
