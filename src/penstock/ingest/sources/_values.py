"""Parsers of single values, which raise `SampleError` on invalid input, and the rule for column names."""

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn

from penstock.errors import InvalidInputError, SampleError
from penstock.format import check_column_name
from penstock.ingest.sources._arrays import to_native
from penstock.ingest.sources._npy import parse_npy
from penstock.types import Buffer

_MAX_NESTING = 64


def parse_text(data: Buffer) -> str:
    """UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise SampleError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def parse_json(data: Buffer) -> Any:
    """JSON of limited nesting depth."""
    text = parse_text(data)
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise SampleError(f"JSON nested deeper than {_MAX_NESTING} levels") from None
    except ValueError as error:
        raise SampleError(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > _MAX_NESTING:
        _check_nesting(value)
    return value


def load_npy(data: Buffer) -> Any:
    """The array of a `.npy` file."""
    array = parse_npy(data).as_one_row()
    if (problem := array.problem()) is not None:
        raise SampleError(problem)
    values = memoryview(data)[array.start :]
    if array.nbytes != len(values):
        raise SampleError(f"its header declares {array.nbytes} bytes of values, and {len(values)} follow")
    return to_native(array.from_bytes(values))[0]


def column_name(name: str, taken: Collection[str], *, identifier: bool = False) -> str:
    """A valid column name, not in `taken`: the name as it is, or cleaned, or with a number appended.

    With `identifier`, a valid name is cleaned too, so that it consists of letters, digits and underscores.
    """
    try:
        check_column_name(name)
        valid = not identifier
    except InvalidInputError:
        valid = False
    if not valid:
        name = re.sub(r"\W+", "_", name).strip("_")[:200] or "column"
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        inner = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in inner if isinstance(item, dict | list)]
    if level:
        raise SampleError(f"JSON nested deeper than {_MAX_NESTING} levels")
