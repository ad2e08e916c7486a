"""Turns rows of the window into batches: gather, decode, replace bad rows, the user's functions."""

from penstock.engine.assembly._batch_builder import (
    BatchAssembler,
    BatchBuilder,
    BatchFormatter,
    BuiltBatches,
    Failure,
    Placement,
    RowKeys,
)
from penstock.engine.assembly._collate import Allocators, Collator
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
from penstock.engine.assembly._leaves import map_leaves
from penstock.engine.assembly._rows import PAD, BadRowsError, GatheredRows, RowGatherer, RowReplacer

__all__ = [
    "PAD",
    "Allocators",
    "BadRowsError",
    "BatchAssembler",
    "BatchBuilder",
    "BatchFormatter",
    "BuiltBatches",
    "Collator",
    "Columns",
    "ConvertedFormatter",
    "Failure",
    "GatheredRows",
    "Jagged",
    "NumpyFormatter",
    "Placement",
    "RowGatherer",
    "RowKeys",
    "RowReplacer",
    "accepts_generator",
    "map_leaves",
    "new_collator",
    "ragged_columns",
    "samples_of",
    "writable",
]
