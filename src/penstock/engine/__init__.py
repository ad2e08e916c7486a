"""Runs a plan: fetch, verify, window, collate, transform; in order, within one budget, and says where it waits."""

from penstock.engine._decode import Columns, DecodeOptions, Decoder
from penstock.engine._finish import (
    LiftedFinish,
    NumpyFinish,
    only_first_differs,
    ragged_columns,
    samples_of,
    takes_generator,
    writable,
)
from penstock.engine._loader import Agree, Loader
from penstock.engine._process import map_leaves
from penstock.engine._ranks import agreement, given_world
from penstock.engine._rows import RowReader
from penstock.engine._stats import BadSample, LoaderStats
from penstock.engine._stream import StreamOptions, available_cores
from penstock.engine._view import Display
from penstock.engine._work import PAD, BadPolicy, BadRows, Finish, Placement, RowKeys

__all__ = [
    "PAD", "Agree", "BadPolicy", "BadRows", "BadSample", "Columns", "DecodeOptions", "Decoder", "Display", "Finish",
    "LiftedFinish", "Loader", "LoaderStats", "NumpyFinish", "Placement", "RowKeys", "RowReader", "StreamOptions",
    "agreement", "available_cores", "given_world", "map_leaves", "only_first_differs", "ragged_columns", "samples_of",
    "takes_generator", "writable",
]  # fmt: skip
