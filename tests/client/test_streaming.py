"""Managed tables on a store that enforces credentials: requests, bytes, refreshes, and a server that dies."""

import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from torch.utils.data import DataLoader

import penstock
from penstock import Client
from penstock.catalog import TableAddress, open_catalog
from penstock.errors import AccessDeniedError
from penstock.storage import open_store
from tests.client.counting import CountingProxy
from tests.server.running import RunningServer, running
from tests.servers import sts_server

ROWS = 2000


@pytest.fixture(scope="module")
def store_proxy() -> Iterator[CountingProxy]:
    """Counts requests to the store."""
    with CountingProxy(urlsplit(sts_server().endpoint).port or 0) as proxy:
        yield proxy


@pytest.fixture
def lake(tmp_path: Path, home: Path, store_proxy: CountingProxy) -> Iterator[RunningServer]:
    """A server of tables in a bucket, which clients reach through the counting proxy."""
    store = sts_server()
    options = [
        word
        for name, value in (store.options | {"endpoint": store_proxy.url}).items()
        for word in ("--option", f"{name}={value}")
    ]
    storage = ("--storage", f"s3://{store.bucket}/{tmp_path.name}", "--role-arn", store.role_arn)
    with running(tmp_path, "--database", str(tmp_path / "database"), *storage, *options) as started:
        yield started


@pytest.fixture
def api(lake: RunningServer) -> Iterator[CountingProxy]:
    """Counts requests to the server."""
    with CountingProxy(lake.port) as proxy:
        yield proxy


@pytest.fixture
def client(lake: RunningServer, api: CountingProxy, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A writer with a table of rows of 1 KB."""
    monkeypatch.setenv("PENSTOCK_API_URL", api.url)
    monkeypatch.setenv("PENSTOCK_API_KEY", lake.new_key("default", "anna", "writer"))
    client = Client()
    vectors = np.random.default_rng(0).random((ROWS, 256), np.float32)
    client.ingest("robot_telemetry", {"step": np.arange(ROWS), "joint_angles": vectors})
    return client


def test_opening_costs_one_request_to_the_server_and_five_to_the_store(
    client: Client, api: CountingProxy, store_proxy: CountingProxy
) -> None:
    api.reset()
    store_proxy.reset()
    ds = client.open_table("robot_telemetry")
    assert api.requests == ["POST /v1/table/default$robot_telemetry/describe"]
    assert len(store_proxy.requests) <= 5, store_proxy.requests
    assert len(ds) == ROWS


def test_no_data_passes_through_the_server(client: Client, api: CountingProxy, store_proxy: CountingProxy) -> None:
    ds = client.open_table("robot_telemetry")
    api.reset()
    store_proxy.reset()
    steps = [int(step) for batch in ds.pytorch(batch_size=64, shuffle=True, num_workers=2) for step in batch["step"]]
    assert sorted(steps) == list(range(ROWS))
    assert (api.requests, api.bytes) == ([], 0)
    assert store_proxy.bytes > ROWS * 1024


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_server_does_not_disturb_a_running_loader(client: Client, lake: RunningServer, workers: int) -> None:
    ds = client.open_table("robot_telemetry")
    loader = DataLoader(ds.pytorch(), batch_size=64, shuffle=True, num_workers=workers)
    seen: list[int] = []
    for batch in loader:
        seen += batch["step"].tolist()
        if len(seen) == 64:
            lake.stop(signal.SIGKILL)
    for batch in loader:  # the next epoch starts new workers
        seen += batch["step"].tolist()
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])


def test_credentials_fit_one_table(client: Client) -> None:
    client.ingest("other", {"x": [1]})
    catalog = open_catalog()
    entry = catalog.find(TableAddress("default", "robot_telemetry"), access="read")
    other = catalog.find(TableAddress("default", "other"))
    assert entry.credentials is not None
    options = {**entry.storage_options, **entry.credentials.options}
    assert len(penstock.load(open_store(entry.uri, options=options))) == ROWS
    for uri, call in ((entry.uri, "put"), (other.uri, "get")):
        store = open_store(uri, options=options)
        with pytest.raises(AccessDeniedError):
            store.put("x", b"") if call == "put" else store.get("table.json")


def test_a_users_own_credentials_take_precedence(client: Client) -> None:
    store = sts_server()
    own = {name: store.options[name] for name in ("access_key_id", "secret_access_key")}
    assert len(penstock.load("penstock://default/robot_telemetry", storage_options=own)) == ROWS
    with pytest.raises(AccessDeniedError):
        penstock.load("penstock://default/robot_telemetry", storage_options=own | {"secret_access_key": "wrong"})
