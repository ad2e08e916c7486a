"""Turns rows of the window into batches: gather, decode, replace bad rows, the user's functions."""

from penstock.engine.assembly._batch_builder import (
    BatchAssembler,
    BatchBuilder,
    BatchFormatter,
    BuiltBatches,
    Failure,
    Gatherer,
    Placement,
    RowKeys,
)
from penstock.engine.assembly._collate import Collator
from penstock.engine.assembly._compose import new_collator
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._formatter import (
    ConvertedFormatter,
    Jagged,
    NumpyFormatter,
    accepts_generator,
    ragged_columns,
    samples_of,
    writable,
)
from penstock.engine.assembly._mixed_columns import PAD, SOURCE, MixedColumns, MixedMemory, Part
from penstock.engine.assembly._rows import BadRowsError, GatheredRows, RowGatherer, SpanGatherer
from penstock.engine.assembly._shapes import ColumnShape, sample_shapes
from penstock.engine.assembly._values import Allocators, RowsAt, map_leaves

__all__ = [
    "PAD",
    "SOURCE",
    "Allocators",
    "BadRowsError",
    "BatchAssembler",
    "BatchBuilder",
    "BatchFormatter",
    "BuiltBatches",
    "Collator",
    "ColumnShape",
    "Columns",
    "ConvertedFormatter",
    "Failure",
    "GatheredRows",
    "Gatherer",
    "Jagged",
    "MixedColumns",
    "MixedMemory",
    "NumpyFormatter",
    "Part",
    "Placement",
    "RowGatherer",
    "RowKeys",
    "RowsAt",
    "SpanGatherer",
    "accepts_generator",
    "map_leaves",
    "new_collator",
    "ragged_columns",
    "sample_shapes",
    "samples_of",
    "writable",
]
