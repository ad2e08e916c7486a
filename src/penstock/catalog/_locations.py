"""The folder of the catalog, and the URIs of tables."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from penstock.catalog._address import TableAddress
from penstock.errors import InvalidInputError
from penstock.storage import local_path

_CLOUDS = ("s3", "gs", "az")


def catalog_folder(environ: Mapping[str, str], platform: str) -> Path:
    """The folder of the catalog: `PENSTOCK_HOME`, or the system's folder for user data."""
    home = environ.get("PENSTOCK_HOME")
    if home:
        return Path(_absolute(home))
    if platform == "darwin":
        return _user_folder() / "Library" / "Application Support" / "penstock"
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else _user_folder() / "AppData" / "Local") / "penstock"
    data_home = environ.get("XDG_DATA_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    return (Path(data_home) if os.path.isabs(data_home) else _user_folder() / ".local" / "share") / "penstock"


def storage_folder(environ: Mapping[str, str], home: Path) -> str:
    """The location of new tables: `PENSTOCK_STORAGE`, or a folder next to the catalog."""
    return environ.get("PENSTOCK_STORAGE") or str(home / "tables")


def new_uri(storage: str, address: TableAddress) -> str:
    """A URI for a new table: readable, and unique, because a table stays where it is when its address changes."""
    try:
        root = checked_uri(storage)
    except InvalidInputError as error:
        raise InvalidInputError(f"the storage of the catalog (PENSTOCK_STORAGE) cannot hold tables: {error}") from error
    folder = f"{address.table}-{secrets.token_hex(4)}"
    if "://" in root:
        return f"{root}/{address.workspace}/{folder}"
    return str(Path(root, address.workspace, folder))


def checked_uri(uri: str | os.PathLike[str]) -> str:
    """Make a place mean the same from any folder and process; what cannot, and what may hold a secret, is refused.

    The messages repeat nothing that stands where people write passwords and signatures.
    """
    text = os.fspath(uri)
    path = local_path(text)
    scheme, separator, rest = text.partition("://")
    if path is not None:
        return _checked_text("file:///" + rest.strip("/") if separator else _absolute(path))
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
        raise InvalidInputError(f"{text!r} cannot be stored, because it is not text; rename the folder")
    return text


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _user_folder() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise InvalidInputError(
            "cannot determine the home folder of this user; set PENSTOCK_HOME to a folder for the catalog"
        ) from error
