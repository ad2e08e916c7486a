"""Penstock: a data lake for training. Tensors in chunks on object storage, streamed to GPUs."""

from penstock import errors
from penstock.dataset import ColumnView, Dataset, Summary, TableDiff, View, create, delete, exists, load, verify
from penstock.format import Column, Commit, Field, Schema
from penstock.format.kinds import (
    Audio,
    Boxes,
    Bytes,
    Embedding,
    Image,
    Json,
    Label,
    Link,
    Linked,
    List,
    Mask,
    Points,
    Struct,
    Tensor,
    Text,
    Video,
)
from penstock.table import Conflict

__all__ = [
    "Audio",
    "Boxes",
    "Bytes",
    "Column",
    "ColumnView",
    "Commit",
    "Conflict",
    "Dataset",
    "Embedding",
    "Field",
    "Image",
    "Json",
    "Label",
    "Link",
    "Linked",
    "List",
    "Mask",
    "Points",
    "Schema",
    "Struct",
    "Summary",
    "TableDiff",
    "Tensor",
    "Text",
    "Video",
    "View",
    "create",
    "delete",
    "errors",
    "exists",
    "load",
    "verify",
]
