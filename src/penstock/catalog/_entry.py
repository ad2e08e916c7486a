"""What a catalog knows of a table, and what every catalog can do."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from penstock.catalog._address import TableAddress
from penstock.storage import CredentialIssuer, Credentials, bare_option

Access = Literal["read", "write"]

_PLACE = {"region", "endpoint", "virtual_hosted_style_request", "account_name", "base_url"}
_CREDENTIALS = {
    *("access_key_id", "secret_access_key", "session_token", "sas_token", "token", "skip_signature"),
    *("account_key", "access_key", "service_account_key"),
}


def option_kind(name: str) -> Literal["place", "credentials"] | None:
    """What a storage option that a server sends describes; None if a client does not accept it from a server.

    Others name files whose content the store would send, hosts that it would ask for credentials, or proxies.
    """
    bare = bare_option(name)
    if bare in _PLACE:
        return "place"
    return "credentials" if bare in _CREDENTIALS else None


@dataclass(frozen=True)
class CatalogEntry:
    """One table of a catalog."""

    address: TableAddress
    uri: str
    """An absolute path, or a URI that `open_store` accepts."""
    created_us: int
    """Creation time of the entry, in microseconds since 1970."""
    table_id: str | None = None
    """The id of the table, if it was given on registration."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the store, such as its endpoint; no secrets."""
    issuer: CredentialIssuer | None = None
    """Issues credentials for the table; None if those of the user apply, never so for a bucket of a server."""
    credentials: Credentials | None = None
    """Credentials that came with the entry, so that opening the table costs no further request."""
    dropped_us: int | None = None
    """When the table was dropped; it can be restored until `purge_us`."""
    purge_us: int | None = None
    owned: bool = True
    """Whether the catalog chose the location, and so may delete the objects; not those of a registered table."""


class TableCatalog(Protocol):
    """Maps addresses to tables: the embedded catalog of a user, or that of a server."""

    def find(self, address: TableAddress, *, access: Access | None = None) -> CatalogEntry:
        """The entry of a table; `access` limits its credentials, which else allow all that the user may do.

        Raises `NotFoundError` that suggests similar addresses.
        """

    def reserve(self, address: TableAddress) -> CatalogEntry:
        """Assign a location to an address, for a new table; idempotent, so that an interrupted job resumes there."""

    def register(
        self, address: TableAddress, uri: str | os.PathLike[str], *, table_id: str | None = None
    ) -> CatalogEntry:
        """Add an existing table; raises `AlreadyExistsError` if another one has the address."""

    def rename(self, address: TableAddress, new: TableAddress) -> CatalogEntry:
        """Give a table another address; its objects stay where they are. Raises `AlreadyExistsError`."""

    def drop(self, address: TableAddress, *, uri: str | None = None) -> CatalogEntry:
        """Remove a table from the catalog; until `purge_us` of the returned entry it can be restored.

        `uri` is that of the table which is meant: `ConflictError` if the address is another one's by now.
        """

    def restore(self, address: TableAddress) -> CatalogEntry:
        """Bring back the table of this address that was dropped last; raises `NotFoundError`, `AlreadyExistsError`."""

    def remove(self, address: TableAddress) -> CatalogEntry:
        """Forget a table, for ever; its objects stay where they are."""

    def forget(self, entry: CatalogEntry) -> None:
        """Free the address of a table that was not made, and never that of another one; nothing if it is gone."""

    def keep(self, entry: CatalogEntry) -> None:
        """Put the entry of a table back if another process has dropped or forgotten it; a renamed one stays so.

        Raises `AlreadyExistsError` if another table has the address, and `NotFoundError` if it cannot be put back.
        """

    def tables(self, workspace: str | None = None, *, dropped: bool = False) -> list[CatalogEntry]:
        """All entries that the user may see, or those of a workspace, sorted by address; or the dropped ones."""

    def workspaces(self) -> list[str]:
        """The names of the workspaces that the user may see, sorted."""
