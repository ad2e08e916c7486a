"""Parse columns from text, on the command line or in a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInputError
from penstock.format import Column, as_column, column_from_json


def parse_columns(texts: Sequence[str]) -> dict[str, Column]:
    """Parse `name:TYPE`, once for each column."""
    columns: dict[str, Column] = {}
    for text in texts:
        name, colon, definition = text.partition(":")
        if not colon:
            raise InvalidInputError(f"--column is written name:TYPE, such as caption:text, not {text!r}")
        if name in columns:
            raise InvalidInputError(f"two columns have the name {name!r}")
        columns[name] = _parse_column(name, definition)
    return columns


def read_columns(path: Path) -> dict[str, Column]:
    """Read a schema file: an object of names and TYPEs, or the output of `penstock info --json`."""
    try:
        document = json.loads(path.read_bytes())
        if isinstance(document.get("columns"), list):
            document = {column["name"]: column for column in document["columns"]}
        return {name: _parse_column(name, definition) for name, definition in document.items()}
    except InvalidInputError:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read a schema from {path}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        expected = '{"name": "TYPE", …}, or the output of `penstock info --json`'
        raise InvalidInputError(f"{path} is not a schema: write {expected}") from error


def _parse_column(name: str, definition: str | Mapping[str, Any]) -> Column:
    if isinstance(definition, str):
        return as_column(name, definition)
    try:
        return column_from_json(definition)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error}") from error
