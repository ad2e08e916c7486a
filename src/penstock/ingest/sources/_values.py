"""Single values out of other people's files: what is not as it should be is a `SampleError` that says so."""

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn

from penstock.errors import InvalidInputError, SampleError
from penstock.format import check_name
from penstock.ingest.sources._arrays import plain
from penstock.ingest.sources._numpy import parse_npy
from penstock.types import Buffer

_MAX_NESTING = 64


def parse_text(data: Buffer) -> str:
    """UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise SampleError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def parse_json(data: Buffer) -> Any:
    """JSON that is not nested beyond what readers can bear."""
    text = parse_text(data)
    try:
        value = json.loads(text, parse_constant=_not_json)
    except RecursionError:
        raise SampleError(f"JSON that is nested more than {_MAX_NESTING} deep") from None
    except ValueError as error:
        raise SampleError(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > _MAX_NESTING:
        _check_nesting(value)
    return value


def load_npy(data: Buffer) -> Any:
    """The one array of a numpy file."""
    array = parse_npy(data).as_one_row()
    if (flaw := array.flaw()) is not None:
        raise SampleError(flaw)
    numbers = memoryview(data)[array.start :]
    if array.nbytes != len(numbers):
        raise SampleError(f"its numbers should have {array.nbytes} bytes and have {len(numbers)}")
    return plain(array.of(numbers))[0]


def column_name(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that a column can have; none of those that are taken."""
    try:
        check_name(name)
    except InvalidInputError:
        name = re.sub(r"\W+", "_", name).strip("_")[:200] or "column"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        inner = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in inner if isinstance(item, dict | list)]
    if level:
        raise SampleError(f"JSON that is nested more than {_MAX_NESTING} deep")
