"""Azure: shared access signatures, for a container per table, or for a directory of a hierarchical namespace."""

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core import exceptions
from azure.storage.blob import BlobServiceClient, UserDelegationKey, generate_blob_sas, generate_container_sas

from penstock.catalog._entry import Access
from penstock.catalog.vending._bucket import BucketVendor
from penstock.catalog.vending._locations import Locations, split
from penstock.catalog.vending._settings import read_settings
from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.storage import Credentials

_PERMISSIONS: dict[Access, str] = {"read": "rl", "write": "rcwdl"}
_MAX_LIFETIME_S = 6 * 24 * 3600.0
"""A user delegation key is valid for seven days at most."""
_CLOCK_SKEW = timedelta(minutes=15)
_REASON_LENGTH = 300


class AzureVendor(BucketVendor):
    """Signatures for one container or directory, by the account's key or else by a key for the server's identity.

    Without a hierarchical namespace a signature covers a blob or a container and no prefix, so that each table has a
    container of its own. `service` is the client of the account, given in tests.
    """

    def __init__(
        self,
        locations: Locations,
        *,
        options: Mapping[str, str],
        lifetime_s: float,
        service: BlobServiceClient | None = None,
    ) -> None:
        settings = read_settings("az", options, os.environ)
        if "account_name" not in settings:
            raise InvalidInputError("no account of Azure is given; give the storage option account_name")
        super().__init__(locations, options)
        self._has_containers = locations.kind == "container"
        self._lifetime_s = min(lifetime_s, _MAX_LIFETIME_S)
        self._account = settings["account_name"]
        endpoint = settings.get("endpoint", f"https://{self._account}.blob.core.windows.net")
        self._settings = {"azure_storage_account_name": self._account}
        if "endpoint" in settings:
            self._settings["azure_storage_endpoint"] = endpoint
        self._protocol = "https,http" if endpoint.startswith("http://") else "https"
        self._account_key = settings.get("account_key")
        self._delegation_key: UserDelegationKey | None = None
        self._delegation_end = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()
        with _translated(self._account):
            self._service = service or BlobServiceClient(
                endpoint,
                credential=_credential(self._account, self._account_key),
                connection_timeout=5,
                read_timeout=10,
                retry_total=2,
                initial_backoff=1,
                increment_base=2,
            )

    def new_location(self) -> str:
        """A location that no table has; creates its container where each table has one."""
        location = self._locations.new()
        if self._has_containers:
            with _translated(self._account):
                self._service.create_container(split(location).bucket)
        return location

    def vend(self, location: str, access: Access) -> Credentials:
        """A signature for the blobs of a container or directory, and for listing them."""
        self._locations.check(location)
        container, path = split(location)
        expiry = datetime.now(UTC) + timedelta(seconds=self._lifetime_s)
        terms: dict[str, Any] = {
            "account_name": self._account,
            "container_name": container,
            "permission": _PERMISSIONS[access],
            "expiry": expiry.replace(microsecond=0),
            "protocol": self._protocol,
        }
        with _translated(self._account):
            terms |= self._signing_key(expiry)
            if path:
                token = generate_blob_sas(**terms, blob_name=path.rstrip("/"), is_directory=True)
            else:
                token = generate_container_sas(**terms)
        # The expiry has no fractions of a second.
        return Credentials(self._settings | {"azure_storage_sas_token": token}, max(0.0, self._lifetime_s - 1.0))

    def remove(self, location: str) -> None:
        """Delete the container, or all blobs, of a location that `new_location` chose."""
        self._locations.check_removable(location)
        if not self._has_containers:
            super().remove(location)
            return
        with _translated(self._account), suppress(exceptions.ResourceNotFoundError):
            self._service.delete_container(split(location).bucket)

    def _signing_key(self, expiry: datetime) -> dict[str, Any]:
        if self._account_key is not None:
            return {"account_key": self._account_key}
        with self._lock:
            if self._delegation_key is None or self._delegation_end < expiry:
                now = datetime.now(UTC)
                end = now + timedelta(seconds=min(2 * self._lifetime_s, _MAX_LIFETIME_S)) + _CLOCK_SKEW
                self._delegation_key = self._service.get_user_delegation_key(now - _CLOCK_SKEW, end)
                self._delegation_end = end
            return {"user_delegation_key": self._delegation_key}


def _credential(account: str, key: str | None) -> Any:
    if key is not None:
        base64.b64decode(key, validate=True)  # the library would ignore wrong characters
        return {"account_name": account, "account_key": key}
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


@contextmanager
def _translated(account: str) -> Iterator[None]:
    """Raise Penstock's errors for those of Azure's libraries."""
    try:
        yield
    except exceptions.HttpResponseError as error:
        reason = f"{error.status_code} {error.reason}"
        if error.status_code in (401, 403) or isinstance(error, exceptions.ClientAuthenticationError):
            raise AccessDeniedError(
                f"account {account} refuses the server ({reason}); check the account's key and the server's clock, or "
                "the roles of its identity: it contributes to blobs, and delegates signatures"
            ) from error
        raise StorageError(f"account {account} fails ({reason}); wait and retry") from error
    except exceptions.AzureError as error:
        raise StorageError(
            f"account {account} cannot be reached ({_reason(error)}); check its name, the endpoint and the network"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"account {account} cannot be used; correct the storage options account_key and endpoint ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:_REASON_LENGTH]
