"""The embedded catalog and that of a server do the same."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog import Catalog, RemoteCatalog, ServerSettings
from tests.catalog.catalog_tests import TableCatalogTests
from tests.server.running import RunningServer, running

_numbers = itertools.count()


class TestCatalog(TableCatalogTests):
    @pytest.fixture(autouse=True)
    def _catalog(self, tmp_path: Path) -> None:
        self.catalog = Catalog(tmp_path / "home", storage=tmp_path / "tables")
        self.workspace, self.location = "team", tmp_path / "elsewhere" / "t"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    storage = ("--database", str(folder / "database"), "--storage", str(folder / "tables"))
    with running(folder, *storage, "--location", str(folder / "elsewhere"), "--rate-limit", "1000000") as started:
        yield started


class TestRemoteCatalog(TableCatalogTests):
    @pytest.fixture(autouse=True)
    def _catalog(self, server: RunningServer) -> None:
        self.workspace = f"team-{next(_numbers)}"
        server.post(f"/v1/namespace/{self.workspace}/create")
        self.catalog = RemoteCatalog(ServerSettings(server.url, server.admin_key, self.workspace))
        self.location = server.folder / "elsewhere" / self.workspace / "t"
