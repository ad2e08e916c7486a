"""Runs a plan: fetch, verify, window, collate, transform; in order, within one budget, and says where it waits."""

from penstock.engine._collate import Columns, DecodeOptions, Decoder, pad
from penstock.engine._loader import Agree, Loader
from penstock.engine._process import map_leaves
from penstock.engine._rows import RowReader
from penstock.engine._stats import BadSample, LoaderStats
from penstock.engine._stream import StreamOptions, available_cores
from penstock.engine._view import Display
from penstock.engine._work import PAD, BadPolicy, BadRows, Finish, RowKeys

__all__ = [
    "PAD", "Agree", "BadPolicy", "BadRows", "BadSample", "Columns", "DecodeOptions", "Decoder", "Display", "Finish",
    "Loader", "LoaderStats", "RowKeys", "RowReader", "StreamOptions", "available_cores",
    "map_leaves", "pad",
]  # fmt: skip
