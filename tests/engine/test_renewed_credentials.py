"""Loaders read on while the credentials of their store are renewed, in threads and in worker processes."""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import RetryPolicy, View, Workers
from penstock.errors import StorageTimeoutError
from penstock.storage import open_store
from penstock.testing import FakeGcs
from tests.engine.reading import large
from tests.engine.watch import our_threads, reader_processes, soon, threads_end, worker_processes
from tests.storage.issuers import TokenIssuer, is_valid

ROWS = 240
BATCH = 10
RENEWALS = 20
PATIENCE_S = 240.0
MODES = [Workers(2, "thread"), Workers(4, "process")]
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "memory_budget": 4 << 20}
"""A budget much smaller than the table, so that every epoch reads."""


@pytest.fixture(scope="module")
def gcs() -> Iterator[FakeGcs]:
    """A table in a store that refuses a token once it has expired."""
    with FakeGcs(accepts_token=lambda token: token == "setup" or is_valid(token)) as server:
        large(open_store(f"{server.uri}/t", options={"base_url": server.endpoint, "bearer_token": "setup"}), ROWS)
        yield server


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    """Takes the issuers' folder, so that they end before it does."""
    yield
    assert threads_end(), our_threads()
    assert soon(lambda: not worker_processes()), worker_processes()


def open_table(gcs: FakeGcs, issuer: TokenIssuer, deadline_s: float = 120.0) -> View:
    policy = RetryPolicy(deadline_s=deadline_s, attempt_timeout_s=min(deadline_s, 60.0))
    store = open_store(f"{gcs.uri}/t", issuer=issuer, credentials=issuer.issue(), retry=policy)
    return penstock.load(store).select(["n", "x"])


def reading_processes(workers: Workers) -> set[int]:
    return set(reader_processes()) if workers.type == "process" else {os.getpid()}


@pytest.mark.parametrize("workers", MODES, ids=lambda workers: workers.type)
def test_twenty_renewals_lose_no_step_and_repeat_none(workers: Workers, gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 1.5)
    seen: list[int] = []
    with open_table(gcs, issuer).numpy(num_workers=workers, until=None, **OPTIONS) as loader:
        deadline = time.monotonic() + PATIENCE_S
        for batch in loader:
            seen += batch["n"].tolist()
            assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
            pids = reading_processes(workers)
            if len(seen) % ROWS == 0 and all(issuer.issued[pid] > RENEWALS for pid in pids):
                break
            assert time.monotonic() < deadline, issuer.issued
    assert pids
    epochs = np.array(seen).reshape(-1, ROWS)
    assert (np.sort(epochs) == np.arange(ROWS)).all()


@pytest.mark.parametrize("workers", MODES, ids=lambda workers: workers.type)
def test_an_epoch_does_not_need_the_issuer(workers: Workers, gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 3600.0)
    with open_table(gcs, issuer).numpy(num_workers=workers, **OPTIONS) as loader:
        batches = iter(loader)
        seen = next(batches)["n"].tolist()
        issuer.begin("away")
        for batch in batches:
            seen += batch["n"].tolist()
    assert sorted(seen) == list(range(ROWS))
    assert issuer.issued.total() == 1  # for the whole job: workers take theirs along


@pytest.mark.parametrize("workers", MODES, ids=lambda workers: workers.type)
def test_an_issuer_that_stays_away_is_an_error_that_says_so(workers: Workers, gcs: FakeGcs, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, gcs.endpoint, 4.0)
    with open_table(gcs, issuer, deadline_s=3.0).numpy(num_workers=workers, until=None, **OPTIONS) as loader:
        batches = iter(loader)
        next(batches)
        issuer.begin("away")
        with pytest.raises(StorageTimeoutError, match="check that the catalog server is running"):
            deque(batches, maxlen=0)
