"""Every store passes the exam of the contract."""

from penstock.storage import Store
from penstock.testing import StoreTests
from tests.servers import new_place


class TestMemoryStore(StoreTests):
    many = 1050

    def new_store(self) -> Store:
        return new_place("memory").open()


class TestFolderStore(StoreTests):
    def new_store(self) -> Store:
        return new_place("folder").open()


class TestS3(StoreTests):
    def new_store(self) -> Store:
        return new_place("s3").open()


class TestGoogleCloudStorage(StoreTests):
    many = 1050

    def new_store(self) -> Store:
        return new_place("gs").open()


class TestAzure(StoreTests):
    def new_store(self) -> Store:
        return new_place("az").open()
