"""A running server on each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import RunningServer, running
from tests.servers import new_database

DATABASES = ("sqlite", "postgresql")


def database_url(kind: str, folder: Path) -> str:
    return new_database() if kind == "postgresql" else str(folder / "database")


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return database_url(request.param, tmp_path)


@pytest.fixture(scope="module", params=DATABASES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Shared by the tests of a module; tables are in a folder."""
    folder = tmp_path_factory.mktemp("server")
    arguments = ("--database", database_url(request.param, folder), "--storage", str(folder / "tables"))
    with running(folder, *arguments, "--rate-limit", "1000000") as started:
        yield started
