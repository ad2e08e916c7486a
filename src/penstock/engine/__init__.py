"""Runs a loader: fetch, verify, shuffle window, collate, transform; batches in order, within one memory budget."""

from penstock.engine._loader import Loader
from penstock.engine._options import (
    BadSamples,
    DecodeOptions,
    Decoder,
    Epochs,
    LoaderOptions,
    RunLength,
    Steps,
    Transforms,
    VersionFollower,
    Workers,
)
from penstock.engine._progress import Progress
from penstock.engine._ranks import RankAgreement, explicit_world
from penstock.engine._row_reader import MixedRowReader, RowReader
from penstock.engine._stats import BadSample, LoaderStats, StageTimes
from penstock.engine.assembly import (
    PAD,
    SOURCE,
    BadRowsError,
    BatchFormatter,
    Columns,
    ConvertedFormatter,
    Jagged,
    Placement,
    RowKeys,
    accepts_generator,
    has_lists,
    map_leaves,
    ragged_columns,
    samples_of,
    writable,
)
from penstock.engine.sources import MixtureSource, Source, schema_of

__all__ = [
    "PAD",
    "SOURCE",
    "BadRowsError",
    "BadSample",
    "BadSamples",
    "BatchFormatter",
    "Columns",
    "ConvertedFormatter",
    "DecodeOptions",
    "Decoder",
    "Epochs",
    "Jagged",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
    "MixedRowReader",
    "MixtureSource",
    "Placement",
    "Progress",
    "RankAgreement",
    "RowKeys",
    "RowReader",
    "RunLength",
    "Source",
    "StageTimes",
    "Steps",
    "Transforms",
    "VersionFollower",
    "Workers",
    "accepts_generator",
    "explicit_world",
    "has_lists",
    "map_leaves",
    "ragged_columns",
    "samples_of",
    "schema_of",
    "writable",
]
