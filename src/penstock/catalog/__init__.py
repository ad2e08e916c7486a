"""Resolve table addresses, `penstock://workspace/table`, to the folder or bucket that holds the table."""

from penstock.catalog._address import TableAddress, is_table_address
from penstock.catalog._admin import KeyOwner, KeyRecord, WorkspaceAdmin, own_workspace
from penstock.catalog._catalog import Catalog
from penstock.catalog._entry import Access, CatalogEntry, TableCatalog
from penstock.catalog._remote import RemoteCatalog, TableCredentials, open_catalog
from penstock.catalog._settings import (
    Login,
    ServerSettings,
    default_workspace,
    find_settings,
    find_url,
    remove_login,
    write_login,
    write_private,
)

__all__ = [
    "Access",
    "Catalog",
    "CatalogEntry",
    "KeyOwner",
    "KeyRecord",
    "Login",
    "RemoteCatalog",
    "ServerSettings",
    "TableAddress",
    "TableCatalog",
    "TableCredentials",
    "WorkspaceAdmin",
    "default_workspace",
    "find_settings",
    "find_url",
    "is_table_address",
    "open_catalog",
    "own_workspace",
    "remove_login",
    "write_login",
    "write_private",
]
