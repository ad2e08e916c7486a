"""Types of columns as text, the same on the command line, in schema files and in Python: `image:jpeg:90`."""

import re
from dataclasses import replace

from penstock.errors import InvalidInputError
from penstock.format.kinds._kind import Kind
from penstock.format.kinds._link import Linked
from penstock.format.kinds._media import Audio, Image, Mask, Video
from penstock.format.kinds._nested import List
from penstock.format.kinds._tensor import Boxes, Embedding, Label, Points, Tensor
from penstock.format.kinds._text import Bytes, Json, Text

TYPE_GRAMMAR = """\b
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
_EXAMPLES = "text, float32, float32[3,4], image:jpeg:90, label=cat,dog, …; `penstock create --help` lists all"


def parse_type(text: str) -> tuple[Kind, bool, str | None]:
    """The kind, whether it is nullable, and the codec of a TYPE; raises `InvalidInputError` if it is not one."""
    match = _TYPE.fullmatch(text.strip())
    if match is None:
        try:
            return Tensor(text), False, None  # numpy's names of dtypes, such as <f4
        except InvalidInputError:
            raise InvalidInputError(f"{text!r} is not a type; write {_EXAMPLES}") from None
    kind, codec = _kind(match), match["codec"]
    if isinstance(kind, Audio):
        kind, codec = replace(kind, codec=codec), None
    return kind, match["nullable"] is not None, codec


def _kind(match: re.Match[str]) -> Kind:
    base, words = match["base"], match["words"]
    dims = tuple(None if n.strip() == "?" else int(n) for n in match["dims"].split(",")) if match["dims"] else ()
    if match["outer"]:
        return _nested(match["outer"], match["inner"])
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
        raise InvalidInputError(f"{base} does not have this form; write {_EXAMPLES}")
    try:
        return Tensor(base, dims)
    except InvalidInputError:
        raise InvalidInputError(f"{base!r} is not a type; write {_EXAMPLES}") from None


def _nested(outer: str, inner: str) -> Kind:
    kind, nullable, codec = parse_type(inner)
    if isinstance(kind, Image) and codec is not None:
        kind, codec = replace(kind, codec=codec), None
    if nullable or codec is not None:
        raise InvalidInputError(f"write the compression and the ? after the parentheses of {outer}(…)")
    return Linked(kind) if outer == "linked" else List(kind)
