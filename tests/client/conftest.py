"""A server with a database of SQLite and tables in a folder, and the settings of a client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import RunningServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    storage = ("--database", str(folder / "database"), "--storage", str(folder / "tables"))
    with running(folder, *storage, "--location", str(folder / "elsewhere"), "--rate-limit", "1000000") as started:
        yield started


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No server is configured, and the embedded catalog is empty."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    for name in ("API_KEY", "API_URL", "WORKSPACE", "STORAGE", "ALLOW_HTTP"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    return tmp_path


_workspaces = iter(range(1 << 20))


@pytest.fixture
def workspace(server: RunningServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new workspace on the server, as whose writer the environment is configured."""
    name = f"team-{next(_workspaces)}"
    server.post(f"/v1/namespace/{name}/create")
    monkeypatch.setenv("PENSTOCK_API_URL", server.url)
    monkeypatch.setenv("PENSTOCK_API_KEY", server.new_key(name, "anna", "writer"))
    monkeypatch.setenv("PENSTOCK_WORKSPACE", name)
    return name
