"""Open the store at an address."""

import os
import re
from collections.abc import Mapping

from penstock.errors import InvalidInputError
from penstock.storage._credentials import CredentialIssuer, Credentials, RenewedCredentials
from penstock.storage._folder import FolderStore
from penstock.storage._keys import check_key, local_path
from penstock.storage._memory import open_memory
from penstock.storage._object import ObjectStore
from penstock.storage._obstore_clients import CLOUD_SCHEMES
from penstock.storage._retry import RetryPolicy
from penstock.storage._store import Store

_BUCKET = re.compile(r"[\w.:$-]+", re.ASCII)  # no character that would change the meaning of a URL


def open_store(
    uri: str | os.PathLike[str],
    *,
    options: Mapping[str, str] | None = None,
    retry: RetryPolicy | None = None,
    issuer: CredentialIssuer | None = None,
    credentials: Credentials | None = None,
) -> Store:
    """Open the store at a folder's path, `file://`, `s3://`, `gs://`, `az://container/…` or `memory://name`.

    `options` are the cloud's settings by obstore's names (`endpoint`, `region`, `access_key_id`, `account_name`, …),
    and `profile`, a profile of the AWS tools, which boto3 reads (extra `aws`). Settings that are not given come from
    the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`), then from the cloud's usual files. `memory://` opens a private
    memory store. Raises `InvalidInputError` for an address, an option or a profile that cannot be used.

    An `issuer` gives and renews the credentials of a bucket; `credentials` are those that it gave already. Then
    credentials in the options, the environment and the cloud's files are not used.
    """
    text = os.fspath(uri)
    if (path := local_path(text)) is not None:
        return FolderStore(path)
    scheme, _, rest = text.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if prefix:
        check_key(prefix)
    if scheme == "memory":
        return open_memory(bucket, prefix)
    if scheme not in CLOUD_SCHEMES:
        raise InvalidInputError(f"{text}: no store for {scheme}://; use a path, file, memory, s3, gs or az")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInputError(f"{scheme}:// must be followed by a bucket's name alone; credentials go into options")
    renewed = None if issuer is None else RenewedCredentials(scheme, text, issuer, credentials)
    return ObjectStore(scheme, bucket, prefix, options=options or {}, policy=retry or RetryPolicy(), renewed=renewed)
