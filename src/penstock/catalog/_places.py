"""Where the catalog is kept, and which places it may name."""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.catalog._address import Address
from penstock.errors import InvalidInputError

_CLOUDS = ("s3", "gs", "az")


def home_folder(environ: Mapping[str, str], platform: str) -> Path:
    """The folder of the catalog: `PENSTOCK_HOME`, or the one that the system keeps for users' data."""
    named = environ.get("PENSTOCK_HOME")
    if named:
        return Path(_absolute(named))
    if platform == "darwin":
        return _user_folder() / "Library" / "Application Support" / "penstock"
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else _user_folder() / "AppData" / "Local") / "penstock"
    shared = environ.get("XDG_DATA_HOME", "")
    # the XDG specification: a relative path there is to be ignored
    return (Path(shared) if os.path.isabs(shared) else _user_folder() / ".local" / "share") / "penstock"


def storage_folder(environ: Mapping[str, str], home: Path) -> str:
    """Where new tables go: `PENSTOCK_STORAGE`, or a folder beside the catalog."""
    return environ.get("PENSTOCK_STORAGE") or str(home / "tables")


def table_uri(storage: str, address: Address) -> str:
    """Where a new table goes; two addresses never share a place, nor does one lie inside another."""
    try:
        root = checked_uri(storage)
    except InvalidInputError as error:
        raise InvalidInputError(f"the storage of the catalog (PENSTOCK_STORAGE) cannot hold tables: {error}") from error
    if "://" in root:
        return f"{root}/{address.workspace}/{address.table}"
    return str(Path(root, address.workspace, address.table))


def checked_uri(uri: str | os.PathLike[str]) -> str:
    """Make a place mean the same from any folder and process; what cannot, and what may hold a secret, is refused.

    The messages repeat nothing that stands where people write passwords and signatures.
    """
    text = os.fspath(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text:
            raise InvalidInputError("no place was given; pass a folder's path or a URI such as s3://bucket/table")
        return _checked_text(_absolute(text))
    if scheme == "file":
        if not rest.startswith("/"):
            raise InvalidInputError(f"{text} names a host; write file:///path, or the path alone")
        return _checked_text("file:///" + rest.strip("/"))
    if scheme == "memory":
        raise InvalidInputError("memory:// ends with its process, and a name does not; use a folder or a bucket")
    if scheme not in _CLOUDS:
        raise InvalidInputError(f"{scheme}:// cannot be the place of a table; use a path, file, s3, gs or az")
    bucket, _, prefix = rest.partition("/")
    if not bucket or "@" in bucket or "?" in rest:
        raise InvalidInputError(
            f"{scheme}:// must be followed by a bucket's name and a path alone; the catalog keeps no credentials: "
            "give them as options or in the environment"
        )
    segments = prefix.rstrip("/").split("/") if prefix else []
    if any(segment in ("", ".", "..") for segment in segments):
        raise InvalidInputError(f"{text}: write names joined by single slashes, without '.' and '..'")
    return _checked_text(f"{scheme}://{'/'.join([bucket, *segments])}")


def _checked_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInputError(f"{text!r} cannot be kept, because it is not text; rename the folder")
    return text


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _user_folder() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise InvalidInputError(
            "this user has no home folder; set PENSTOCK_HOME to a folder for the catalog"
        ) from error
