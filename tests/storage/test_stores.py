"""Every store passes the conformance suite."""

from penstock.storage import Store
from penstock.testing import StoreTests
from tests.servers import new_location


class TestMemoryStore(StoreTests):
    list_objects = 1050

    def new_store(self) -> Store:
        return new_location("memory").open()


class TestFolderStore(StoreTests):
    def new_store(self) -> Store:
        return new_location("folder").open()


class TestS3(StoreTests):
    def new_store(self) -> Store:
        return new_location("s3").open()


class TestGoogleCloudStorage(StoreTests):
    list_objects = 1050

    def new_store(self) -> Store:
        return new_location("gs").open()


class TestAzure(StoreTests):
    def new_store(self) -> Store:
        return new_location("az").open()
