"""List the objects of a table; files that others left among them, such as `.DS_Store`, are not part of it."""

import re
from collections.abc import Iterator

from penstock.storage import ObjectInfo, Store

_ID = "[0-9a-f]{32}"
_NUMBER = "[0-9]{20}"
_KEY = re.compile(
    rf"log/{_ID}/(?:{_NUMBER}\.json|HINT)"
    rf"|ids/{_NUMBER}"
    rf"|refs/(?:branches|tags)/[^/]+/{_NUMBER}\.json"
    rf"|views/(?:[^/]+/{_NUMBER}\.json|{_ID}\.arrow)"
    rf"|(?:leases|intents|vacuums)/{_ID}\.json"
    rf"|(?:snapshots|blobs)/{_ID}"
    rf"|(?:manifests|data|ingest|quarantine)/{_ID}\.arrow"
    r"|ingest/waiting/.+"
    r"|index/building/.+"
    rf"|index/search/{_ID}/{_ID}\.(?:arrow|json)"
    rf"|index/rows/[0-9a-f]{{16}}-(?:values|lengths)/{_ID}\.arrow"
)


def list_objects(store: Store, prefix: str) -> Iterator[ObjectInfo]:
    """The objects of the table below a prefix, in the order of their keys."""
    return (item for item in store.list(prefix) if _KEY.fullmatch(item.key))
