"""Resolve table addresses, `penstock://workspace/table`, to the folder or bucket that holds the table."""

from penstock.catalog._address import TableAddress, is_table_address
from penstock.catalog._catalog import Catalog
from penstock.catalog._entry import Access, CatalogEntry, TableCatalog

__all__ = ["Access", "Catalog", "CatalogEntry", "TableAddress", "TableCatalog", "is_table_address"]
