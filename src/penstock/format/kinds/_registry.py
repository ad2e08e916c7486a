"""Every kind by the name it has in schemas."""

from penstock.format.kinds._kind import Kind
from penstock.format.kinds._link import Linked
from penstock.format.kinds._media import Audio, Image, Mask, Video
from penstock.format.kinds._nested import List, Struct
from penstock.format.kinds._tensor import Boxes, Embedding, Label, Points, Tensor
from penstock.format.kinds._text import Bytes, Json, Text

KINDS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        Audio, Boxes, Bytes, Embedding, Image, Json, Label, Linked, List, Mask, Points, Struct, Tensor, Text, Video
    )
}  # fmt: skip
