"""Runs that outlive their credentials, on a store that refuses expired ones."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from penstock import Client
from tests.client.counting import CountingProxy
from tests.server.running import RunningServer, running
from tests.servers import new_location

ROWS = 512
REFRESHES = 20
_LIMIT_S = 400


@pytest.fixture
def lake(tmp_path: Path, home: Path) -> Iterator[RunningServer]:
    """A server on Azure, whose signatures expire when they say so; S3's last for 15 minutes at least."""
    options = [word for pair in new_location("az").options.items() for word in ("--option", "=".join(pair))]
    storage = ("--storage", f"az://lake{secrets.token_hex(4)}", "--credential-lifetime", "4")
    with running(tmp_path, "--database", str(tmp_path / "database"), *storage, *options) as started:
        yield started


def test_a_run_that_outlives_twenty_refreshes_loses_no_step(
    lake: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CountingProxy(lake.port) as api:
        monkeypatch.setenv("PENSTOCK_API_URL", api.url)
        monkeypatch.setenv("PENSTOCK_API_KEY", lake.new_key("default", "anna", "writer"))
        client = Client()
        client.ingest("t", {"step": np.arange(ROWS)})
        ds = client.open_table("t")
        api.reset()
        started, epochs = time.monotonic(), 0
        while len(api.requests) < REFRESHES:
            assert time.monotonic() - started < _LIMIT_S, f"{len(api.requests)} refreshes in {epochs} epochs"
            steps = []
            rows = DataLoader(ds.pytorch(), batch_size=32, shuffle=True, num_workers=2)
            for batch in ds.pytorch(batch_size=32, shuffle=True) if epochs % 2 else rows:
                steps += batch["step"].tolist()
                time.sleep(0.1)  # a training step
            assert sorted(steps) == list(range(ROWS))
            epochs += 1
            if epochs == 1:
                Client(api_url=lake.url).rename_table("t", "renamed")  # the run does not notice
        assert {request.partition("?")[0] for request in api.requests} == {"GET /v1/table/default$t/credentials"}
        assert epochs > 1
