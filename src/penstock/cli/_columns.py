"""Parse columns from text, on the command line or in a file: `image:jpeg:90`, `float32[3,4]`, `text?`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInputError
from penstock.format import Column
from penstock.format.kinds import (
    Audio,
    Boxes,
    Bytes,
    Embedding,
    Image,
    Json,
    Kind,
    Label,
    Linked,
    List,
    Mask,
    Points,
    Tensor,
    Text,
    Video,
    kind_from_json,
)

GRAMMAR = """\b
TYPE is one of
  text, bytes, json                 strings, plain bytes, any JSON value
  float32, int64, bool, …           a scalar
  float32[3,4], uint8[?,4]          a tensor; ? for a dimension that varies by row
  image, image:jpeg:90              images; image[224,224,3] if all have one shape
  mask, audio, audio:flac, video    segmentation masks, sound and video
  label, label=cat,dog              a class, by index or by name
  embedding[512]                    a vector for search
  boxes, boxes=xywh, points[2]      any number of boxes or points per row
  list(TYPE), linked(TYPE)          a list per row; a link to bytes stored elsewhere
with :lz4, :zstd or :zstd:LEVEL after it to compress the column (image, audio: their own codecs)
and ? at the end for a nullable column. Quote it: shells interpret [ and ?.
"""

_TYPE = re.compile(
    r"(?:(?P<outer>list|linked)\((?P<inner>.+)\)|"
    r"(?P<base>[a-z]\w*?(?:64\[(?:s|ms|us|ns)\])?)(?:\[(?P<dims>(?:\d+|\?)(?:, *(?:\d+|\?))*)\])?)"
    r"(?:=(?P<words>[^:?]+))?(?::(?P<codec>\w+(?::\d+)?))?(?P<nullable>\?)?"
)
_PLAIN: dict[str, type[Kind]] = {
    "audio": Audio, "bytes": Bytes, "image": Image, "json": Json, "label": Label, "mask": Mask, "text": Text,
    "video": Video, "boxes": Boxes, "points": Points,
}  # fmt: skip


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
    try:
        return parse_type(definition) if isinstance(definition, str) else _from_json(definition)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error}") from error


def _from_json(document: Mapping[str, Any]) -> Column:
    codec = document.get("codec", "none")
    sizes = {key: document[key] for key in ("file_bytes", "page_bytes") if key in document}
    kind = kind_from_json(document["type"])
    return Column(kind, bool(document.get("nullable")), None if codec == "none" else codec, **sizes)


def parse_type(text: str) -> Column:
    """Parse a TYPE; raises `InvalidInputError` if it is not one."""
    match = _TYPE.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a type; `penstock create --help` shows the syntax of types")
    kind, codec = _kind(match), match["codec"]
    if isinstance(kind, Audio):
        kind, codec = replace(kind, codec=codec), None
    return Column(kind, match["nullable"] is not None, codec)


def _kind(match: re.Match[str]) -> Kind:
    base, words = match["base"], match["words"]
    dims = tuple(None if n.strip() == "?" else int(n) for n in match["dims"].split(",")) if match["dims"] else ()
    if match["outer"]:
        inner = parse_type(match["inner"])
        if inner.nullable or inner.codec != "none":
            raise InvalidInputError(f"write the compression and the ? after the parentheses of {match['outer']}(…)")
        return Linked(inner.kind) if match["outer"] == "linked" else List(inner.kind)
    if base == "label" and words and not dims:
        return Label(tuple(words.split(",")))
    if base == "boxes" and words and not dims:
        return Boxes(layout=words)
    if words:
        raise InvalidInputError(f"only label=… and boxes=… take a value, not {base}")
    if base == "embedding" and len(dims) == 1 and dims[0]:
        return Embedding(dims[0])
    if base == "points" and len(dims) == 1 and dims[0]:
        return Points(shape=(None, dims[0]))
    if base in ("image", "mask") and dims and None not in dims:
        return (Image if base == "image" else Mask)(shape=tuple(n for n in dims if n is not None))
    if base in _PLAIN and not dims:
        return _PLAIN[base]()
    if base in _PLAIN or base == "embedding":
        raise InvalidInputError(f"{base} does not have this form; `penstock create --help` shows the syntax of types")
    try:
        return Tensor(base, dims)
    except InvalidInputError:
        raise InvalidInputError(f"{base!r} is not a type; `penstock create --help` lists them") from None
