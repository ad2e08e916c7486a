"""Keys, object URIs and local paths, checked the same way by every store."""

import re
from urllib.parse import unquote

from penstock.errors import InvalidInputError

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of unfinished files in a folder; no key may use it."""

_NOT_A_NAME = re.compile(rf"(?:^|/)(?:\.{{0,2}}(?:/|$)|{re.escape(TEMPORARY_PREFIX)})")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Raise `InvalidInputError` for a key that some store would alter, hide, or resolve outside its root."""
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
    """The URI of an object as a user would write it, for messages."""
    return f"{store_uri.rstrip('/')}/{key}"


def local_path(uri: str) -> str | None:
    """The path of a `file://` URI, percent-decoded, or of a plain path, unchanged; None for any other scheme.

    Raises `InvalidInputError` for an empty address and for a `file://` URI with a host.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        if not uri:
            raise InvalidInputError("no address was given; pass a folder's path or a URI such as s3://bucket/table")
        return uri
    if scheme != "file":
        return None
    if not path.startswith("/"):
        raise InvalidInputError(f"{uri} names a host; write file:///path, or the path alone")
    return unquote(path)
