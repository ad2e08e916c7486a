"""Object keys and ids of a table."""

import secrets

from penstock.errors import CorruptError

TABLE_KEY = "penstock.json"
LOG_PREFIX = "log/"


def new_id() -> str:
    """A random 128-bit id, in hexadecimal."""
    return secrets.token_hex(16)


def new_int_id() -> int:
    """A random positive 63-bit id, for fields and fragments."""
    return secrets.randbelow(2**63 - 1) + 1


def commit_key(branch_id: str, version: int) -> str:
    return f"log/{branch_id}/{version:020}.json"


def hint_key(branch_id: str) -> str:
    return f"log/{branch_id}/HINT"


def ids_key(claim: int) -> str:
    return f"ids/{claim:020}"


def snapshot_key(id: str) -> str:
    return f"snapshots/{id}"


def manifest_key(id: str) -> str:
    return f"manifests/{id}.arrow"


def data_key(id: str) -> str:
    return f"data/{id}.arrow"


def blob_key(id: str) -> str:
    return f"blobs/{id}"


def ingest_manifest_key(id: str) -> str:
    return f"ingest/{id}.arrow"


def corrupt_error(where: str, what: str) -> CorruptError:
    """The error for an object that fails verification."""
    return CorruptError(f"{where} is damaged: {what}. Restore it from a copy of the table")
