"""Stores that cannot narrow credentials: every client gets those of the server."""

from collections.abc import Mapping

from penstock.catalog._entry import Access, option_kind
from penstock.catalog.vending._bucket import BucketVendor
from penstock.catalog.vending._locations import Locations
from penstock.catalog.vending._settings import bare
from penstock.errors import InvalidInputError
from penstock.storage import Credentials

_SHAREABLE = {
    "s3": ("access_key_id", "skip_signature"),
    "az": ("account_key", "sas_token", "skip_signature"),
    "gs": ("service_account_key", "token", "skip_signature"),
}
"""Options of which one must be given: what is in the environment or the files of the server is not handed out."""
_PREFIX = {"s3": "aws_", "az": "azure_storage_", "gs": "google_"}
_PREFIXED = {
    *("access_key_id", "secret_access_key", "session_token", "region", "endpoint"),
    *("account_name", "account_key", "sas_token"),
    *("service_account_key", "token", "base_url"),
}


class SharedVendor(BucketVendor):
    """Hands out the storage options of the server, with which clients can reach every table."""

    narrow = False

    def __init__(self, locations: Locations, *, scheme: str, options: Mapping[str, str]) -> None:
        super().__init__(locations, options)
        self._shared = _shared_options(scheme, options)

    def vend(self, location: str, access: Access) -> Credentials:  # noqa: ARG002
        """The credentials of the server."""
        self._locations.check(location)
        return Credentials(self._shared, None)


def _shared_options(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    if scheme == "memory":
        return {}
    settings = bare(scheme, options)
    if "profile" in settings or not settings.keys() & set(_SHAREABLE[scheme]):
        raise InvalidInputError(
            f"credentials that clients share must be storage options ({' or '.join(_SHAREABLE[scheme])}): those in the "
            "environment, profiles and files of the server are not handed out"
        )
    return {
        f"{_PREFIX[scheme]}{name}" if name in _PREFIXED else name: value
        for name, value in settings.items()
        if option_kind(name) is not None  # others concern this machine, and clients refuse them
    }
