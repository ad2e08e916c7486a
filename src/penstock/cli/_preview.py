"""Short previews of values: for a JSON document, and as one line of text."""

import json
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.cli._render import format_bytes
from penstock.dataset import BlobPreview
from penstock.errors import PenstockError
from penstock.format.kinds import Json, Kind, Label, Link, Linked, List, Struct

_MAX_LINE_CHARS = 100
_MAX_DOCUMENT_CHARS = 1000
_MAX_ELEMENTS = 6
_MAX_ITEMS = 3


class Preview(NamedTuple):
    """A short form of a value: for a JSON document, and as one line."""

    document: Any
    line: str


def preview(kind: Kind, value: Any) -> Preview:
    """A preview of a value of a column, or of what `preview_rows` puts in its place."""
    if value is None:
        return Preview(None, "–")
    if isinstance(value, BlobPreview):
        return Preview({"bytes": value.length}, f"{format_bytes(value.length)}, stored as a blob")
    if isinstance(value, Link):
        link = {"link": value.uri, "offset": value.offset, "length": value.length}
        return Preview(link, f"link to {value.uri} ({format_bytes(value.length or 0)})")
    if isinstance(value, PenstockError):
        return Preview({"error": str(value)}, f"cannot be read: {value}")
    if isinstance(kind, Linked):
        return preview(kind.to, value)
    if isinstance(kind, Label):
        index = int(value)
        name = kind.names[index] if 0 <= index < len(kind.names) else None
        return Preview({"label": index, "name": name}, str(index) if name is None else f"{index} ({name})")
    if isinstance(kind, Json):
        text = json.dumps(value, ensure_ascii=False)
        document = value if len(text) <= _MAX_DOCUMENT_CHARS else _truncate(text, _MAX_DOCUMENT_CHARS)
        return Preview(document, _truncate(text, _MAX_LINE_CHARS))
    if isinstance(kind, List):
        return _preview_list(kind, value)
    if isinstance(kind, Struct):
        members = {name: preview(member, value[name]) for name, member in kind.fields}
        line = ", ".join(f"{name}: {member.line}" for name, member in members.items())
        return Preview({name: member.document for name, member in members.items()}, line)
    return _preview_plain(value)


def _preview_list(kind: List, value: Any) -> Preview:
    first = [preview(kind.of, item) for item in value[:_MAX_ITEMS]]
    more = ["…"] if len(value) > _MAX_ITEMS else []
    line = "no items"
    if value:
        line = f"{len(value)} item{'s'[len(value) == 1 :]}: {', '.join([item.line for item in first] + more)}"
    return Preview({"items": len(value), "first": [item.document for item in first]}, line)


def _preview_plain(value: Any) -> Preview:
    if isinstance(value, str):
        return Preview(_truncate(value, _MAX_DOCUMENT_CHARS), repr(_truncate(value, _MAX_LINE_CHARS)))
    if isinstance(value, bytes):
        return Preview({"bytes": len(value)}, format_bytes(len(value)))
    array = np.asarray(value)
    if array.ndim == 0:
        scalar = _to_json(array[()])
        return Preview(scalar, _format_scalar(scalar))
    return _preview_array(array)


def _preview_array(array: npt.NDArray[Any]) -> Preview:
    flat = array.reshape(-1)
    first = [_to_json(item) for item in flat[:_MAX_ELEMENTS]]
    ordered = array.size > 0 and array.dtype.kind != "c"
    low, high = (_to_json(np.fmin.reduce(flat)), _to_json(np.fmax.reduce(flat))) if ordered else (None, None)
    document = {"dtype": array.dtype.name, "shape": list(array.shape), "min": low, "max": high, "first": first}
    line = f"{array.dtype.name}{list(array.shape)}"
    if 0 < array.size <= _MAX_ELEMENTS:
        line += f"  {', '.join(map(_format_scalar, first))}"
    elif ordered:
        line += f"  {_format_scalar(low)} to {_format_scalar(high)}"
    return Preview(document, line)


def _to_json(scalar: Any) -> Any:
    """A numpy scalar as a JSON value; a string if JSON has no such value."""
    if isinstance(scalar, np.datetime64 | np.timedelta64):
        return str(scalar)
    value = scalar.item()
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def _format_scalar(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
