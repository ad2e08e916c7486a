"""Resolve table addresses, `penstock://workspace/table`, to the folder or bucket that holds the table."""

from penstock.catalog._address import TableAddress, is_table_address
from penstock.catalog._catalog import Catalog, CatalogEntry

__all__ = ["Catalog", "CatalogEntry", "TableAddress", "is_table_address"]
