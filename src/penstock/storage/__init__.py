"""Keys to bytes: object stores, folders and memory behind one contract."""

from penstock.storage._credentials import CredentialIssuer, Credentials, bare_option
from penstock.storage._fetch import Fetcher, FetchObserver, FetchRequest
from penstock.storage._folder import FolderStore
from penstock.storage._keys import local_path
from penstock.storage._memory import MemoryStore, open_portable
from penstock.storage._object import ObjectStore
from penstock.storage._open import open_store
from penstock.storage._overlay import OverlayStore
from penstock.storage._prefetch import Prefetch, read_ahead
from penstock.storage._probe import Capabilities, probe
from penstock.storage._ranges import coalesce, get_ranges
from penstock.storage._retry import RetryPolicy, cancel_retries_on
from penstock.storage._source_listing import SkippedObject, list_source
from penstock.storage._store import ObjectInfo, Store
from penstock.storage._thread_turns import ThreadTurns
from penstock.storage._threads import thread_map

__all__ = [
    "Capabilities",
    "CredentialIssuer",
    "Credentials",
    "FetchObserver",
    "FetchRequest",
    "Fetcher",
    "FolderStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "OverlayStore",
    "Prefetch",
    "RetryPolicy",
    "SkippedObject",
    "Store",
    "ThreadTurns",
    "bare_option",
    "cancel_retries_on",
    "coalesce",
    "get_ranges",
    "list_source",
    "local_path",
    "open_portable",
    "open_store",
    "probe",
    "read_ahead",
    "thread_map",
]
