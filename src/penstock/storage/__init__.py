"""Keys to bytes: object stores, folders and memory behind one contract."""

from penstock.storage._ahead import Ahead
from penstock.storage._folder import FolderStore
from penstock.storage._memory import MemoryStore
from penstock.storage._object import ObjectStore
from penstock.storage._open import open_store
from penstock.storage._pool import run_all
from penstock.storage._probe import Capabilities, probe
from penstock.storage._ranges import coalesce, get_ranges
from penstock.storage._retry import RetryPolicy, give_up_when
from penstock.storage._store import ObjectInfo, Store

__all__ = [
    "Ahead",
    "Capabilities",
    "FolderStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "RetryPolicy",
    "Store",
    "coalesce",
    "get_ranges",
    "give_up_when",
    "open_store",
    "probe",
    "run_all",
]
