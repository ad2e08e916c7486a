"""Credentials of a table, as the Lance Namespace and the Iceberg REST specifications write them."""

from typing import Any

from penstock.catalog import Access
from penstock.catalog.registry import Principal
from penstock.server.operations._errors import denied, settings_of_the_server
from penstock.server.operations._models import CredentialsRequest, CredentialsResponse, StorageCredentials
from penstock.server.operations._operation import Request, expiry_millis

_ICEBERG_NAMES = {
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
    "aws_endpoint": "s3.endpoint",
    "azure_storage_account_name": "adls.account-name",
    "azure_storage_sas_token": "adls.sas-token",
    "google_token": "gcs.oauth2.token",
}
_ICEBERG_EXPIRY = {
    "aws_session_token": "s3.session-token-expires-at-ms",
    "google_token": "gcs.oauth2.token-expires-at",
}
EXPIRY = "expires_at_millis"


def vend(request: Request[Any], location: str, wanted: Access | None) -> dict[str, str]:
    """The storage options with which a client opens a location; raises an `ApiError` if its role is too low."""
    access = allowed_access(request.principal, wanted)
    with settings_of_the_server():
        credentials = request.services.vendor.vend(location, access)
    options = dict(credentials.options)
    if credentials.lifetime_s is not None:
        options[EXPIRY] = expiry_millis(credentials.lifetime_s)
    return options


def allowed_access(principal: Principal, wanted: Access | None) -> Access:
    """What a key may do with the credentials that it gets; raises an `ApiError` if it wants more than its role."""
    most: Access = "read" if principal.role == "reader" else "write"
    if wanted == "write" and most == "read":
        raise denied("a reader gets credentials to read only; ask an admin of the workspace for the role writer")
    return wanted or most


def refresh_credentials(request: Request[CredentialsRequest]) -> CredentialsResponse:
    """Issue credentials again; `describe_table` issued the first ones."""
    location = request.params.location
    row = request.find_table() if location is None else request.workspace.at(location)
    options = vend(request, row.location, request.params.access)
    config = {_ICEBERG_NAMES[name]: value for name, value in options.items() if name in _ICEBERG_NAMES}
    config |= {
        name: options[EXPIRY] for option, name in _ICEBERG_EXPIRY.items() if option in options and EXPIRY in options
    }
    prefixes = [StorageCredentials(prefix=row.location, config=config)] if config else []
    access = allowed_access(request.principal, request.params.access)
    return CredentialsResponse(
        table=row.name, access=access, storage_options=options, **{"storage-credentials": prefixes}
    )
