"""The kinds of columns: what values mean, and the Arrow arrays that hold them."""

from penstock.format.kinds._kind import KINDS, BadValue, Kind, Values, kind_from_json, kind_to_json
from penstock.format.kinds._link import Link, Linked, Place
from penstock.format.kinds._media import Audio, Image, Mask, Video
from penstock.format.kinds._nested import List, Struct
from penstock.format.kinds._tensor import Boxes, Embedding, Label, Points, Tensor
from penstock.format.kinds._text import Bytes, Json, Text

__all__ = [
    "KINDS",
    "Audio",
    "BadValue",
    "Boxes",
    "Bytes",
    "Embedding",
    "Image",
    "Json",
    "Kind",
    "Label",
    "Link",
    "Linked",
    "List",
    "Mask",
    "Place",
    "Points",
    "Struct",
    "Tensor",
    "Text",
    "Values",
    "Video",
    "kind_from_json",
    "kind_to_json",
]
