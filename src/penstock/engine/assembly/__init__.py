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
from penstock.engine.assembly._mixed import MixedMemory, SpanGatherer, join_columns
from penstock.engine.assembly._mixed_columns import SOURCE, MixedColumn, MixedRows, mixed_columns
from penstock.engine.assembly._rows import PAD, BadRowsError, GatheredRows, RowGatherer, RowReplacer
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
    "MixedColumn",
    "MixedMemory",
    "MixedRows",
    "NumpyFormatter",
    "Placement",
    "RowGatherer",
    "RowKeys",
    "RowReplacer",
    "RowsAt",
    "SpanGatherer",
    "accepts_generator",
    "join_columns",
    "map_leaves",
    "mixed_columns",
    "new_collator",
    "ragged_columns",
    "sample_shapes",
    "samples_of",
    "writable",
]
