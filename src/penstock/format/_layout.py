"""Object keys and ids of a table."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import CorruptError, UnsupportedFormatError

TABLE_KEY = "penstock.json"
LOG_PREFIX = "log/"


def new_id() -> str:
    """A random 128-bit id, in hexadecimal."""
    return secrets.token_hex(16)


def new_int_id() -> int:
    """A random positive 63-bit id, for fields and fragments."""
    return secrets.randbelow(2**63 - 1) + 1


def commit_key(branch_id: str, version: int) -> str:
    return f"log/{_safe(branch_id)}/{version:020}.json"


def hint_key(branch_id: str) -> str:
    return f"log/{_safe(branch_id)}/HINT"


def ids_key(claim: int) -> str:
    return f"ids/{claim:020}"


def snapshot_key(id: str) -> str:
    return f"snapshots/{_safe(id)}"


def manifest_key(id: str) -> str:
    return f"manifests/{_safe(id)}.arrow"


def data_key(id: str) -> str:
    return f"data/{_safe(id)}.arrow"


def blob_key(id: str) -> str:
    return f"blobs/{_safe(id)}"


def ingest_manifest_key(id: str) -> str:
    return f"ingest/{_safe(id)}.arrow"


def row_index_folder(field_id: int, *, lengths: bool) -> str:
    """The prefix of the row indexes of a field: of its values, or of their lengths."""
    return f"index/rows/{field_id:016x}-{'lengths' if lengths else 'values'}/"


def row_index_key(field_id: int, snapshot_id: str, *, lengths: bool) -> str:
    return f"{row_index_folder(field_id, lengths=lengths)}{_safe(snapshot_id)}.arrow"


def search_index_key(index_id: str, object_id: str, suffix: str) -> str:
    return f"index/search/{_safe(index_id)}/{_safe(object_id)}.{suffix}"


def building_key(folder: str, name: str) -> str:
    """The key of an object of an index that is being built."""
    return f"index/building/{_safe(folder)}/{name}"


def quarantine_key(id: str) -> str:
    return f"quarantine/{_safe(id)}.arrow"


def view_key(id: str) -> str:
    return f"views/{_safe(id)}.arrow"


def corrupt_error(where: str, what: str) -> CorruptError:
    """The error for an object that fails verification."""
    return CorruptError(f"{where} is damaged: {what}. Restore it from a copy of the table")


@contextmanager
def decoding(where: str) -> Iterator[None]:
    """Translate every error of a decoder to a `CorruptError` that names `where`.

    A decoder does no I/O: whatever it raises, the cause is the content of the object.
    """
    try:
        yield
    except (CorruptError, UnsupportedFormatError):
        raise
    except Exception as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise corrupt_error(where, f"its content is invalid: {what}") from error


def _safe(id: str) -> str:
    """An id that cannot leave its folder when it becomes part of a key."""
    if not (id.isascii() and id.isalnum()):
        raise CorruptError(f"the table refers to an object by the id {id!r}, which is none. Restore it from a copy")
    return id
