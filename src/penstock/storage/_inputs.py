"""What every store accepts: keys, and bytes in any shape."""

import re

from penstock.errors import InvalidInputError
from penstock.types import Buffer

TEMPORARY_PREFIX = ".tmp-"
"""How the names of unfinished files in a folder begin; no key may use it."""

_NOT_A_NAME = re.compile(rf"(?:^|/)(?:\.{{0,2}}(?:/|$)|{re.escape(TEMPORARY_PREFIX)})")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Refuse a key that some store would change, hide, or take out of its root."""
    if _NOT_A_NAME.search(key):
        raise InvalidInputError(
            f"not a key: {key!r}; write relative names joined by single slashes, "
            f"without '.', '..' or a name that starts with {TEMPORARY_PREFIX!r}"
        )
    if _FORBIDDEN.search(key):
        raise InvalidInputError(
            f"not a key: {key!r} has a backslash, a control character or a lone surrogate; rename it"
        )


def object_uri(store_uri: str, key: str) -> str:
    """Name an object in messages as the user would write it."""
    return f"{store_uri.rstrip('/')}/{key}"


def byte_view(data: Buffer) -> memoryview:
    """View a buffer of any shape and type as plain bytes, without a copy."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # a shape with a zero in it cannot be cast
