"""Names to places: `penstock://workspace/table` to the folder or bucket that holds the table."""

from penstock.catalog._address import Address, is_address
from penstock.catalog._catalog import Catalog, Entry

__all__ = ["Address", "Catalog", "Entry", "is_address"]
