"""The catalog of a server: the same operations as the embedded one, over HTTP."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from penstock.catalog._address import TableAddress
from penstock.catalog._catalog import Catalog
from penstock.catalog._entry import Access, CatalogEntry, TableCatalog, option_kind
from penstock.catalog._http import Answer, ServerApi, understood
from penstock.catalog._locations import checked_uri
from penstock.catalog._settings import ServerSettings, find_settings, is_loopback
from penstock.catalog._suggestions import dropped_message, not_found_message
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    PenstockError,
    StorageError,
)
from penstock.storage import CredentialIssuer, Credentials, local_path

_ALLOW_FOLDERS = "PENSTOCK_ALLOW_FOLDERS"
_EXPIRY = "expires_at_millis"
_PAGE = 500
_REFUSALS: dict[Access | None, str] = {
    "read": 'the table was opened with access="read"; open it without that to write',
    None: "this key may read, not write; ask an admin of the workspace for the role writer",
}
"""Why credentials to read cannot write, by the access that was asked for."""


def open_catalog(settings: ServerSettings | None = None) -> TableCatalog:
    """The catalog of a server; by default of the one that is configured, and if none is, the embedded catalog."""
    found = settings or find_settings()
    return Catalog() if found is None else RemoteCatalog(found)


class RemoteCatalog:
    """Maps addresses to the tables of a server, with credentials for each; the data itself comes from the store.

    A server is trusted with its tables and not with this machine: it names no file, proxy or other host to ask for
    credentials, credentials of the user do not go to the stores it names, and folders are opened only if it runs here
    or the user allows it.
    """

    def __init__(self, settings: ServerSettings, *, api: ServerApi | None = None) -> None:
        self.settings = settings
        self._api = api or ServerApi(settings)

    def __repr__(self) -> str:
        return f"RemoteCatalog({self.settings.url!r})"

    def __str__(self) -> str:
        return f"the server {self.settings.url}"

    def find(self, address: TableAddress, *, access: Access | None = None) -> CatalogEntry:
        """The entry of a table with credentials, by one request; raises `NotFoundError` that suggests others."""
        try:
            return self._reachable(self._describe(address, access))
        except NotFoundError:
            raise NotFoundError(_not_found_message(self, address)) from None

    def reserve(self, address: TableAddress) -> CatalogEntry:
        """Assign a location to an address, for a new table; idempotent across processes."""
        try:
            return self._reachable(self._describe(address, None))
        except NotFoundError:
            pass
        try:
            answer = self._post(address, "declare", f"create {address}", {"vend_credentials": True})
        except AlreadyExistsError:  # another process was first, or the answer to an attempt was lost
            return self._reachable(self._describe(address, None))
        return self._reachable(self._entry(address, answer, None))

    def register(
        self, address: TableAddress, uri: str | os.PathLike[str], *, table_id: str | None = None
    ) -> CatalogEntry:
        """Add an existing table, as an admin of the server; raises `AlreadyExistsError`."""
        location = checked_uri(uri)
        body = {"location": location, "properties": {} if table_id is None else {"table_id": table_id}}
        try:
            self._post(address, "register", f"register {address}", body)
        except AlreadyExistsError:
            # The server keeps one of the two texts of a folder.
            if self._describe(address, None).uri.removeprefix("file://") != location.removeprefix("file://"):
                raise
        return self._describe(address, None)

    def rename(self, address: TableAddress, new: TableAddress) -> CatalogEntry:
        """Give a table another address; its objects stay where they are. Raises `AlreadyExistsError`."""
        body = {"new_table_name": new.table, "new_namespace_id": [new.workspace]}
        self._change(address, "rename", f"rename {address} to {new}", body)
        return self._describe(new, None)

    def drop(self, address: TableAddress, *, uri: str | None = None) -> CatalogEntry:
        """Remove a table from the catalog; until `purge_us` of the returned entry it can be restored.

        `uri` is that of the table which is meant: `ConflictError` if the address is another one's by now.
        """
        return self._entry(address, self._change(address, "drop", f"drop {address}", {"location": uri}), None)

    def restore(self, address: TableAddress) -> CatalogEntry:
        """Bring back the table of this address that was dropped last; raises `NotFoundError`, `AlreadyExistsError`."""
        self._post(address, "undrop", f"restore {address}", {})
        return self._describe(address, None)

    def remove(self, address: TableAddress) -> CatalogEntry:
        """Forget a table, for ever, as an admin of the workspace; its objects stay where they are."""
        return self._entry(address, self._change(address, "deregister", f"remove {address}", {}), None)

    def forget(self, entry: CatalogEntry) -> None:
        """Drop the table of this very entry, because only admins may forget one; nothing if it is gone."""
        with suppress(NotFoundError, ConflictError):
            self.drop(entry.address, uri=entry.uri)

    def keep(self, entry: CatalogEntry) -> None:
        """Restore the table of an entry if another process has dropped it; a renamed one stays so.

        Raises `AlreadyExistsError` if another table has the address, `NotFoundError` if the server has forgotten it.
        """
        with suppress(NotFoundError):
            if self._describe(entry.address, None).uri == entry.uri:
                return
        self._post(entry.address, "undrop", f"restore {entry.address}", {"location": entry.uri})

    def tables(self, workspace: str | None = None, *, dropped: bool = False) -> list[CatalogEntry]:
        """All entries that the key may see, or those of a workspace, sorted by address; or the dropped ones."""
        names = self.workspaces() if workspace is None else [workspace]
        return [entry for name in sorted(names) for entry in self._tables(name, dropped=dropped)]

    def workspaces(self) -> list[str]:
        """The names of the workspaces that the key may see, sorted."""
        return sorted(_pages(self, "/v1/namespace/$/list", "list the workspaces", "namespaces"))

    def _tables(self, workspace: str, *, dropped: bool) -> list[CatalogEntry]:
        path, what = f"/v1/namespace/{quote(workspace)}/table/list", f"list the tables of {workspace!r}"
        rows = _pages(self, path, what, "details", details="true", dropped="true" if dropped else None)
        with understood(self.settings.url, what):
            entries = [
                CatalogEntry(
                    TableAddress(workspace, row["name"]),
                    row["location"],
                    row["created_at_millis"] * 1000,
                    issuer=_issuer(self.settings, TableAddress(workspace, row["name"]), row["location"], None),
                    dropped_us=_micros(row.get("dropped_at_millis")),
                    purge_us=_micros(row.get("purge_at_millis")),
                )
                for row in rows
            ]
        return sorted(entries, key=lambda entry: entry.address)

    def _post(self, address: TableAddress, operation: str, what: str, body: Mapping[str, Any]) -> Answer:
        return self._api.post(f"/v1/table/{_id(address)}/{operation}", what, body)

    def _change(self, address: TableAddress, operation: str, what: str, body: Mapping[str, Any]) -> Answer:
        """Change an existing table; raises `NotFoundError` that suggests others."""
        try:
            return self._post(address, operation, what, body)
        except NotFoundError:
            raise NotFoundError(_not_found_message(self, address)) from None

    def _describe(self, address: TableAddress, access: Access | None) -> CatalogEntry:
        body = {"vend_credentials": True, "access": access}
        answer = self._api.post(f"/v1/table/{_id(address)}/describe", f"open {address}", body, repeatable=True)
        return self._entry(address, answer, access)

    def _entry(self, address: TableAddress, answer: Answer, access: Access | None) -> CatalogEntry:
        found = answer.document
        with understood(self.settings.url, f"open {address}"):
            place, vended = _split_options(self.settings, answer, access)
            location = str(found["location"])
            return CatalogEntry(
                address,
                location,
                found["created_at_millis"] * 1000,
                (found.get("properties") or {}).get("table_id"),
                storage_options=place,
                issuer=_issuer(self.settings, address, location, access),
                credentials=vended,
                dropped_us=_micros(found.get("dropped_at_millis")),
                purge_us=_micros(found.get("purge_at_millis")),
            )

    def _reachable(self, entry: CatalogEntry) -> CatalogEntry:
        """The entry of a table to be opened; folders of this machine are not for a server elsewhere to name."""
        if entry.issuer is None and not is_loopback(self.settings.url) and os.environ.get(_ALLOW_FOLDERS) != "1":
            raise AccessDeniedError(
                f"{entry.address} is in the folder {entry.uri}, says {self}, and a server on another machine must not"
                f" choose folders of this one; if they share it and you trust the server, set {_ALLOW_FOLDERS}=1"
            )
        return entry


@dataclass(frozen=True)
class TableCredentials:
    """Issues credentials for one table of a server; can be pickled, with the key."""

    settings: ServerSettings
    address: TableAddress
    location: str
    """Which does not change when the table is renamed."""
    access: Access | None

    def issue(self) -> Credentials:
        """New credentials; raises `StorageError` if the server does not answer, `AccessDeniedError` if it refuses."""
        what = f"renew the credentials of {self.address}"
        try:
            answer = ServerApi(self.settings).get(
                f"/v1/table/{_id(self.address)}/credentials", what, access=self.access, location=self.location
            )
        except NotFoundError as error:
            raise AccessDeniedError(f"{error} since it was opened; restore it") from None
        with understood(self.settings.url, what):
            _, found = _split_options(self.settings, answer, self.access)
        if found is None:
            raise AccessDeniedError(
                f"cannot {what}: the server {self.settings.url} issues none for it, and those of your environment are"
                " not sent where a server says; give credentials as storage_options"
            )
        return found


def _not_found_message(catalog: RemoteCatalog, address: TableAddress) -> str:
    try:
        known = [entry.address for entry in catalog._tables(address.workspace, dropped=False)]
        dropped = {entry.address for entry in catalog._tables(address.workspace, dropped=True)}
    except NotFoundError as error:  # there is no such workspace
        return str(error)
    except PenstockError:  # the message is about the table
        known, dropped = [], set()
    return dropped_message(address) if address in dropped else not_found_message(catalog, address, known)


def _pages(catalog: RemoteCatalog, path: str, what: str, field: str, **query: str | None) -> list[Any]:
    found: list[Any] = []
    token, seen = None, set[Any]()
    while True:
        document = catalog._api.get(path, what, page_token=token, limit=str(_PAGE), **query).document
        with understood(catalog.settings.url, what):
            page = list(document[field])
            token = document.get("page_token")
            repeats = token in seen
            seen.add(token)
        if repeats:
            raise StorageError(f"cannot {what}: the server {catalog.settings.url} repeats a page; upgrade the server")
        found += page
        if not token or not page:
            return found


def _issuer(
    settings: ServerSettings, address: TableAddress, location: str, access: Access | None
) -> CredentialIssuer | None:
    """For every bucket, also one without credentials: else those of the user would go where the server says."""
    return TableCredentials(settings, address, location, access) if local_path(location) is None else None


def _split_options(
    settings: ServerSettings, answer: Answer, wanted: Access | None
) -> tuple[dict[str, str], Credentials | None]:
    """The place of a store, and credentials if there are any, with the time they last.

    Raises `AccessDeniedError` for every other option: the answer of a server is not trusted.
    """
    options: Mapping[str, str] = answer.document.get("storage_options") or {}
    found: dict[str, dict[str, str]] = {"place": {}, "credentials": {}}
    for name, value in options.items():
        if name == _EXPIRY:
            continue
        if (kind := option_kind(name)) is None:
            raise AccessDeniedError(
                f"the server {settings.url} sends the storage option {name[:60]!r}, and its answer is not trusted with"
                " that: it may name the place of a table and credentials; have the option removed from the server"
            )
        if not isinstance(value, str):
            raise TypeError(f"the storage option {name} is no text")
        found[kind][name] = value
    secrets, expiry = found["credentials"], options.get(_EXPIRY)
    lifetime_s = None if expiry is None else max(0.0, int(expiry) / 1000 - answer.date_s)
    refusal = _REFUSALS[wanted] if answer.document.get("access") == "read" else None
    return found["place"], Credentials(secrets, lifetime_s, refusal) if secrets else None


def _id(address: TableAddress) -> str:
    return quote(f"{address.workspace}${address.table}", safe="$")


def _micros(millis: int | None) -> int | None:
    return None if millis is None else millis * 1000
