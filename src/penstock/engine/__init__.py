"""Runs a loader: fetch, verify, shuffle window, collate, transform; batches in order, within one memory budget."""

from penstock.engine._batch_builder import PAD, BadRowsError, BatchFormatter, Placement, RowKeys
from penstock.engine._decode import Columns, DecodeOptions, Decoder
from penstock.engine._formatter import (
    ConvertedFormatter,
    NumpyFormatter,
    accepts_generator,
    ragged_columns,
    ragged_in_first_dimension,
    samples_of,
    writable,
)
from penstock.engine._loader import ConsistencyCheck, Loader
from penstock.engine._machine import available_cores
from penstock.engine._options import BadSamples, LoaderOptions, Transforms, Workers
from penstock.engine._progress import Progress
from penstock.engine._ranks import explicit_world, rank_consistency_check
from penstock.engine._row_reader import RowReader
from penstock.engine._stats import BadSample, LoaderStats, StageTimes
from penstock.engine._worker_process import map_leaves

__all__ = [
    "PAD",
    "BadRowsError",
    "BadSample",
    "BadSamples",
    "BatchFormatter",
    "Columns",
    "ConsistencyCheck",
    "ConvertedFormatter",
    "DecodeOptions",
    "Decoder",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
    "NumpyFormatter",
    "Placement",
    "Progress",
    "RowKeys",
    "RowReader",
    "StageTimes",
    "Transforms",
    "Workers",
    "accepts_generator",
    "available_cores",
    "explicit_world",
    "map_leaves",
    "ragged_columns",
    "ragged_in_first_dimension",
    "rank_consistency_check",
    "samples_of",
    "writable",
]  # fmt: skip
