"""A registry on SQLite and on a real PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.registry import Registry
from tests.servers import new_database


class Clock:
    """Seconds since 1970, as the test sets them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new empty database of each kind in turn."""
    return str(tmp_path / "server") if request.param == "sqlite" else new_database()


@pytest.fixture
def registry(url: str, clock: Clock) -> Iterator[Registry]:
    found = Registry(url, clock=clock)
    try:
        found.migrate()
        found.create_workspace("team")
        yield found
    finally:
        found.close()
