"""Columns written as text, on the command line or in a file: `image:jpeg:90`, `float32[3,4]`, `text?`."""

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
  text, bytes, json                 strings, plain bytes, anything JSON can say
  float32, int64, bool, …           one number
  float32[3,4], uint8[?,4]          a tensor; ? where the length differs from row to row
  image, image:jpeg:90              pictures; image[224,224,3] where all have one shape
  mask, audio, audio:flac, video    segmentation masks, sound and film
  label, label=cat,dog              a class by its number or its name
  embedding[512]                    a vector to search by
  boxes, boxes=xywh, points[2]      any number of boxes or points in a row
  list(TYPE), linked(TYPE)          many values in a row; bytes that stay where they are
with :lz4, :zstd or :zstd:LEVEL after it to compress the column (image, audio: their own codecs)
and ? at the end where rows may lack a value. Quote it: shells read [ and ? themselves.
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
    """Understand `name:TYPE`, once for each column."""
    columns: dict[str, Column] = {}
    for text in texts:
        name, colon, described = text.partition(":")
        if not colon:
            raise InvalidInputError(f"--column is written name:TYPE, such as caption:text, and not {text!r}")
        if name in columns:
            raise InvalidInputError(f"two columns are called {name!r}")
        columns[name] = _column(name, described)
    return columns


def read_columns(path: Path) -> dict[str, Column]:
    """Read a schema file: an object of names and TYPEs, or what `penstock info --json` prints."""
    try:
        document = json.loads(path.read_bytes())
        if isinstance(document.get("columns"), list):
            document = {column["name"]: column for column in document["columns"]}
        return {name: _column(name, described) for name, described in document.items()}
    except InvalidInputError:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read a schema from {path}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        wanted = '{"name": "TYPE", …}, or what `penstock info --json` prints'
        raise InvalidInputError(f"{path} is not a schema: write {wanted}") from error


def _column(name: str, described: str | Mapping[str, Any]) -> Column:
    try:
        return parse_type(described) if isinstance(described, str) else _from_json(described)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error}") from error


def _from_json(described: Mapping[str, Any]) -> Column:
    codec = described.get("codec", "none")
    sizes = {key: described[key] for key in ("file_bytes", "page_bytes") if key in described}
    kind = kind_from_json(described["type"])
    return Column(kind, bool(described.get("nullable")), None if codec == "none" else codec, **sizes)


def parse_type(text: str) -> Column:
    """Understand a TYPE."""
    match = _TYPE.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a type; `penstock create --help` shows how types are written")
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
            raise InvalidInputError(f"write the compression and the ? after the brackets of {match['outer']}(…)")
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
        raise InvalidInputError(f"{base} is not written so; `penstock create --help` shows how types are written")
    try:
        return Tensor(base, dims)
    except InvalidInputError:
        raise InvalidInputError(f"{base!r} is not a type; `penstock create --help` lists them") from None
