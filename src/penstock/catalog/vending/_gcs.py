"""Google Cloud Storage: tokens of the server's account, narrowed by a credential access boundary."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import google.auth
from google.auth import downscoped, exceptions
from google.oauth2 import service_account as service_accounts

from penstock.catalog._entry import Access
from penstock.catalog.vending._bucket import BucketVendor
from penstock.catalog.vending._locations import Locations, Prefix, split
from penstock.catalog.vending._settings import read_settings, service_account
from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.storage import Credentials

_ROLES: dict[Access, str] = {"read": "roles/storage.objectViewer", "write": "roles/storage.objectUser"}
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_REASON_LENGTH = 300
_TIMEOUT_S = 10


class GcsVendor(BucketVendor):
    """Tokens for one prefix of a bucket, which must have uniform bucket-level access.

    A token lasts as long as the one of the server's account that it is made of, usually an hour: a shorter lifetime
    makes clients renew theirs earlier. `source` and `request` are those of google-auth, given in tests.
    """

    def __init__(
        self,
        locations: Locations,
        *,
        options: Mapping[str, str],
        lifetime_s: float,
        source: Any = None,
        request: Callable[..., Any] | None = None,
    ) -> None:
        settings = read_settings("gs", options, os.environ)
        account = service_account(settings)
        super().__init__(locations, options)
        self._lifetime_s = lifetime_s
        base_url = settings.get("base_url") or account.get("gcs_base_url")
        self._settings = {"google_base_url": base_url} if base_url else {}
        with _translated():
            self._source = source or _load_source(account)
            self._request = request or _new_request()

    def vend(self, location: str, access: Access) -> Credentials:
        """A token for the objects below a location, and for listing them."""
        self._locations.check(location)
        with _translated():
            # Each refresh replaces the token of the source, so threads do not share one.
            narrowed = downscoped.Credentials(copy.copy(self._source), access_boundary(split(location), access))
            narrowed.refresh(self._send)
        lifetime_s = self._lifetime_s
        if narrowed.expiry is not None:
            left = narrowed.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
            lifetime_s = min(lifetime_s, left.total_seconds())
        return Credentials(self._settings | {"google_token": narrowed.token}, lifetime_s)

    def _send(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request; raises for an overloaded service, which google-auth takes for one that refuses."""
        response = self._request(*args, **{"timeout": _TIMEOUT_S} | kwargs)
        if response.status == 429 or response.status >= 500:
            raise exceptions.TransportError(f"status {response.status}")
        return response


def access_boundary(prefix: Prefix, access: Access) -> Any:
    """The rights to one prefix of a bucket: a token has those that the account has as well."""
    condition = None
    if prefix.path:
        objects = f"resource.name.startsWith('projects/_/buckets/{prefix.bucket}/objects/{prefix.path}')"
        attribute = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
        condition = downscoped.AvailabilityCondition(f"{objects} || {attribute}.startsWith('{prefix.path}')")
    rule = downscoped.AccessBoundaryRule(
        available_resource=f"//storage.googleapis.com/projects/_/buckets/{prefix.bucket}",
        available_permissions=[f"inRole:{_ROLES[access]}"],
        availability_condition=condition,
    )
    return downscoped.CredentialAccessBoundary([rule])


def _load_source(account: dict[str, Any]) -> Any:
    if account.get("type") == "service_account":
        return service_accounts.Credentials.from_service_account_info(account, scopes=_SCOPES)
    if account:
        return google.auth.load_credentials_from_dict(account, scopes=_SCOPES)[0]
    return google.auth.default(scopes=_SCOPES)[0]


def _new_request() -> Callable[..., Any]:
    try:
        from google.auth.transport.requests import Request
    except ImportError as error:
        raise InvalidInputError("google-auth needs requests; run `pip install 'penstock[gcs]'`") from error
    return Request()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise Penstock's errors for those of google-auth."""
    try:
        yield
    except exceptions.TransportError as error:
        raise StorageError(
            f"Google's token service cannot be reached or is overloaded ({_reason(error)}); check the network; retry"
        ) from error
    except exceptions.DefaultCredentialsError as error:
        raise InvalidInputError(
            f"the server has no credentials of Google ({_reason(error)}); give the storage option service_account, or "
            "run `gcloud auth application-default login`"
        ) from error
    except (exceptions.RefreshError, exceptions.OAuthError) as error:
        raise AccessDeniedError(
            f"Google's token service refuses the server's account ({_reason(error)}); check that its key is enabled, "
            "its access to the bucket, and the server's clock"
        ) from error
    except (exceptions.GoogleAuthError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            "the service account of Google cannot be used; download its key again, or correct the storage options"
        ) from error


def _reason(error: Exception) -> str:
    return str(error.args[0] if error.args else error).partition("\n")[0][:_REASON_LENGTH]
