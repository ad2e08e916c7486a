"""Folders: the file system checks the rights of users, and there are no credentials."""

import os
import shutil
from contextlib import suppress

from penstock.catalog._entry import Access
from penstock.catalog.vending._bucket import BucketVendor
from penstock.catalog.vending._locations import Locations
from penstock.errors import AccessDeniedError, StorageError
from penstock.storage import Credentials, local_path


class FolderVendor(BucketVendor):
    """Locations in a folder that the server and its clients share, such as a network file system."""

    narrow = True

    def __init__(self, locations: Locations) -> None:
        super().__init__(locations, {})

    def vend(self, location: str, access: Access) -> Credentials:  # noqa: ARG002
        """No credentials."""
        self._locations.check(location)
        return Credentials({}, None)

    def remove(self, location: str) -> None:
        """Delete the folder of a location that `new_location` chose."""
        self._locations.check_removable(location)
        path = os.fspath(local_path(location) or location)
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
        except PermissionError as error:
            raise AccessDeniedError(f"{path} cannot be deleted ({error.strerror}); check its owner") from error
        except OSError as error:
            raise StorageError(
                f"{path} cannot be deleted ({error.strerror}); check the file system, and retry"
            ) from error
