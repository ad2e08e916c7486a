"""The kinds of index by name."""

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.errors import InvalidInputError, UnsupportedFormatError
from penstock.format import Field
from penstock.query.indexes._kind import IndexKind
from penstock.query.indexes._scalar import ScalarKind
from penstock.query.indexes._vector import VectorKind
from penstock.query.indexes.text import TextKind


class KindFactory(Protocol):
    """Makes a kind of index for a column from its options; raises `InvalidInputError` if they do not fit."""

    def __call__(self, field: Field, options: Mapping[str, Any]) -> IndexKind: ...


KINDS: dict[str, KindFactory] = {"scalar": ScalarKind.make, "text": TextKind.make, "vector": VectorKind.make}


def make_kind(name: str, field: Field, options: Mapping[str, Any]) -> IndexKind:
    """The kind that a user asked for; raises `InvalidInputError`."""
    if name not in KINDS:
        raise InvalidInputError(f"there is no kind of index {name!r}; choose one of {', '.join(sorted(KINDS))}")
    return KINDS[name](field, options)


def kind_from_options(name: str, field: Field, options: Mapping[str, Any]) -> IndexKind:
    """The kind of a stored index; raises `UnsupportedFormatError` if this version does not know it."""
    if name not in KINDS:
        raise UnsupportedFormatError(f"an index of column {field.name!r} is of kind {name!r}; upgrade Penstock")
    return KINDS[name](field, options)
