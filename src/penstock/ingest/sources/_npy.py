"""The header of a `.npy` file, through numpy's own parser."""

import io
from threading import Lock
from typing import IO

from numpy.lib import format as npy_format

from penstock.errors import PenstockError, SampleError
from penstock.ingest.sources._arrays import Array
from penstock.types import Buffer

NPY_HEAD_BYTES = 16 << 10
"""A header is shorter than this."""
_MAX_AXES = 32
_PARSING = Lock()
"""Held while numpy parses: Python 3.11 raises SystemError if two threads build syntax trees at once (gh-106905)."""
_HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
    (3, 0): npy_format.read_array_header_2_0,  # differs only in the encoding of field names
}


def parse_npy(head: Buffer) -> Array:
    """The array that the beginning of a `.npy` file describes; raises `SampleError`."""
    return read_npy_header(io.BytesIO(head))


def read_npy_header(file: IO[bytes]) -> Array:
    """Read the header of a `.npy` file up to its data, of which nothing is read; raises `SampleError`."""
    try:
        version = npy_format.read_magic(file)
    except ValueError as error:
        raise SampleError(f"it is not a .npy file, or is truncated: {error}") from None
    if version not in _HEADER_READERS:
        raise SampleError(f"it has the unknown version {version} of the .npy format")
    try:
        with _PARSING:
            shape, fortran, dtype = _HEADER_READERS[version](file)
    except (PenstockError, MemoryError):
        raise
    except Exception as error:  # the header is a Python literal, and a hostile one makes the parser raise anything
        raise SampleError(f"its header cannot be parsed: {str(error)[:200]}") from None
    if len(shape) > _MAX_AXES or not all(0 <= length < 1 << 63 for length in shape):
        raise SampleError(f"its header declares the shape {str(shape)[:100]}, which is not valid ({len(shape)} axes)")
    return Array(dtype, shape, file.tell(), fortran)
