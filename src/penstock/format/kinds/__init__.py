"""Kinds: the value types of columns, and their conversion to and from Arrow arrays."""

from penstock.format.kinds._kind import (
    KINDS,
    BadValueError,
    Kind,
    Values,
    corrupt_struct_reason,
    kind_from_json,
    kind_to_json,
    to_numpy,
)
from penstock.format.kinds._link import Link, Linked, LinkTarget
from penstock.format.kinds._media import Audio, Image, Mask, Video, any_shape, encoded_bytes, encoded_shape
from penstock.format.kinds._nested import List, Struct
from penstock.format.kinds._tensor import Boxes, Embedding, Label, Points, Tensor, nat_as_null
from penstock.format.kinds._text import Bytes, Json, Text
from penstock.format.kinds._type_text import TYPE_GRAMMAR, parse_type

__all__ = [
    "KINDS",
    "TYPE_GRAMMAR",
    "Audio",
    "BadValueError",
    "Boxes",
    "Bytes",
    "Embedding",
    "Image",
    "Json",
    "Kind",
    "Label",
    "Link",
    "LinkTarget",
    "Linked",
    "List",
    "Mask",
    "Points",
    "Struct",
    "Tensor",
    "Text",
    "Values",
    "Video",
    "any_shape",
    "corrupt_struct_reason",
    "encoded_bytes",
    "encoded_shape",
    "kind_from_json",
    "kind_to_json",
    "nat_as_null",
    "parse_type",
    "to_numpy",
]
