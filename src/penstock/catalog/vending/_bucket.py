"""What all vendors do in the same way: choose locations, check them, and delete their objects."""

from collections.abc import Mapping
from itertools import islice

from penstock.catalog.vending._locations import Locations
from penstock.storage import open_store

_BATCH = 1000
"""Keys in memory at a time, and in a request."""


class BucketVendor:
    """A vendor without `vend`."""

    narrow = True

    def __init__(self, locations: Locations, options: Mapping[str, str]) -> None:
        self.storage = locations.storage
        self.server_options = dict(options)
        self._locations = locations

    def new_location(self) -> str:
        """A location that no table has."""
        return self._locations.new()

    def check_location(self, location: str) -> None:
        """Raise `InvalidInputError` for a location where no table may be registered."""
        self._locations.check_registrable(location)

    def remove(self, location: str) -> None:
        """Delete all objects of a location that `new_location` chose; bounded in memory."""
        self._locations.check_removable(location)
        store = open_store(location, options=self.server_options)
        try:
            keys = (info.key for info in store.list())
            while batch := list(islice(keys, _BATCH)):
                store.delete(batch)
        finally:
            store.close()
