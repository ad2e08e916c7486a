"""Issue credentials that fit one table: one file per cloud, one signature."""

from penstock.catalog.vending._cached import CachedVendor
from penstock.catalog.vending._make import make_vendor
from penstock.catalog.vending._vendor import Vendor

__all__ = ["CachedVendor", "Vendor", "make_vendor"]
