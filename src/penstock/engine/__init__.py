"""Runs a loader: fetch, verify, shuffle window, collate, transform; batches in order, within one memory budget."""

from penstock.engine._loader import ConsistencyCheck, Loader
from penstock.engine._machine import available_cores
from penstock.engine._options import BadSamples, DecodeOptions, Decoder, LoaderOptions, Transforms, Workers
from penstock.engine._progress import Progress
from penstock.engine._ranks import explicit_world, rank_consistency_check
from penstock.engine._row_reader import RowReader
from penstock.engine._stats import BadSample, LoaderStats, StageTimes
from penstock.engine.assembly import (
    PAD,
    SOURCE,
    BadRowsError,
    BatchFormatter,
    Columns,
    ConvertedFormatter,
    Jagged,
    NumpyFormatter,
    Placement,
    RowKeys,
    accepts_generator,
    map_leaves,
    ragged_columns,
    samples_of,
    writable,
)
from penstock.engine.sources import MixedRowReader, MixtureSource, Source, schema_of

__all__ = [
    "PAD",
    "SOURCE",
    "BadRowsError",
    "BadSample",
    "BadSamples",
    "BatchFormatter",
    "Columns",
    "ConsistencyCheck",
    "ConvertedFormatter",
    "DecodeOptions",
    "Decoder",
    "Jagged",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
    "MixedRowReader",
    "MixtureSource",
    "NumpyFormatter",
    "Placement",
    "Progress",
    "RowKeys",
    "RowReader",
    "Source",
    "StageTimes",
    "Transforms",
    "Workers",
    "accepts_generator",
    "available_cores",
    "explicit_world",
    "map_leaves",
    "ragged_columns",
    "rank_consistency_check",
    "samples_of",
    "schema_of",
    "writable",
]  # fmt: skip
