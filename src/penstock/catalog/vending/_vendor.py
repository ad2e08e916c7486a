"""What a server asks of the store that holds its tables."""

from collections.abc import Mapping
from typing import Protocol

from penstock.catalog._entry import Access
from penstock.storage import Credentials


class Vendor(Protocol):
    """Chooses the locations of tables, and issues credentials for them; thread-safe.

    A location is a random id below the storage, or within one of the other locations that the server was started with.
    Every method raises `InvalidInputError` for any other text, so that none of it reaches a policy or a path;
    `AccessDeniedError` and `StorageError` say that the store refused or failed.
    """

    @property
    def storage(self) -> str:
        """Where new tables are."""

    @property
    def narrow(self) -> bool:
        """Whether credentials are limited to one table; False if those who get them can reach other tables too."""

    @property
    def server_options(self) -> Mapping[str, str]:
        """The options with which the server itself opens a location; secret."""

    def new_location(self) -> str:
        """A location that no table has."""

    def check_location(self, location: str) -> None:
        """Raise `InvalidInputError` for a location where no table may be registered: those of new tables, or others."""

    def vend(self, location: str, access: Access) -> Credentials:
        """Credentials for the objects below a location, together with the settings that a client needs."""

    def remove(self, location: str) -> None:
        """Delete all objects of a location that `new_location` chose; removing it again does nothing."""
