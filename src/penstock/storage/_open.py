"""From an address to a store."""

import os
from collections.abc import Mapping
from urllib.parse import unquote

from penstock.errors import InvalidInputError
from penstock.storage._clouds import CLOUD_SCHEMES
from penstock.storage._folder import FolderStore
from penstock.storage._inputs import check_key
from penstock.storage._memory import open_memory
from penstock.storage._object import ObjectStore
from penstock.storage._retry import RetryPolicy
from penstock.storage._store import Store


def open_store(
    uri: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, retry: RetryPolicy | None = None
) -> Store:
    """Open the store at a folder's path, `file://`, `s3://`, `gs://`, `az://container/…` or `memory://name`.

    `options` are the cloud's settings by obstore's names (`endpoint`, `region`, `access_key_id`, `account_name`, …; and
    `profile`, a profile of the AWS tools). What they leave out is taken from the environment (`AWS_*`, `GOOGLE_*`,
    `AZURE_*`), then from the cloud's usual files. A private memory store is opened by `memory://`.
    """
    text = os.fspath(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text:
            raise InvalidInputError("no address was given; pass a folder's path or a URI such as s3://bucket/table")
        return FolderStore(text)
    if scheme == "file":
        if not rest.startswith("/"):
            raise InvalidInputError(f"{text} names a host; write file:///path, or the path alone")
        return FolderStore(unquote(rest))
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if prefix:
        check_key(prefix)
    if scheme == "memory":
        return open_memory(bucket, prefix)
    if scheme not in CLOUD_SCHEMES:
        raise InvalidInputError(f"{text}: no store for {scheme}://; use a path, file, memory, s3, gs or az")
    if not bucket or "@" in bucket:
        raise InvalidInputError(f"{scheme}:// must be followed by a bucket's name alone; credentials go into options")
    return ObjectStore(scheme, bucket, prefix, options=options or {}, policy=retry or RetryPolicy())
