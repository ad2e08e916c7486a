"""Stream one table by its bare URI and through the server, in turns; and open it, counting requests."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import penstock
from benchmarks.loader import nginx
from benchmarks.server.running import Running, served
from penstock import Client, Dataset

ROWS, IMAGE = 12_000, (224, 224, 3)
BUCKET = "lake"
KEYS = ("--option", "access_key_id=key", "--option", "secret_access_key=secret", "--option", "region=us-east-1")


def measure(database: str, folder: Path, *, rounds: int) -> list[dict[str, Any]]:
    """The store is nginx, which ignores signatures: the clients sign every request as they would on S3."""
    (folder / BUCKET).mkdir()
    with (
        nginx.serve(folder, log=True) as store,
        served(
            database, f"s3://{BUCKET}/tables", "--allow-shared-credentials", *KEYS,
            "--option", f"endpoint={store.endpoint}", "--credential-lifetime", "900",
        ) as server,
    ):  # fmt: skip
        _, declared = server.ask("POST", "/v1/table/default$images/declare", {})
        _write(folder / BUCKET / urlsplit(declared["location"]).path.lstrip("/"))
        client = Client(api_key=server.key, api_url=server.url)
        before = len(store.answers())
        asked = _requests(server)
        client.open_table("images", access="read")
        requests = {"storage": len(store.answers()) - before, "server": _requests(server) - asked - 1}
        bare_options = {"endpoint": store.endpoint, "access_key_id": "key", "secret_access_key": "secret",
                        "region": "us-east-1"}  # fmt: skip
        ways: dict[str, Callable[[], Dataset]] = {
            "bare": lambda: penstock.load(declared["location"], storage_options=bare_options),
            "managed": lambda: client.open_table("images", access="read"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, opened in ways.items():
                rates[name].append(_rows_per_s(opened()))
        ratio = statistics.median(m / b for m, b in zip(rates["managed"], rates["bare"], strict=True))
        return [
            {"what": "open a managed table: requests to the server", "value": requests["server"], "wanted": "1"},
            {"what": "open a managed table: requests to storage", "value": requests["storage"], "wanted": "<= 5"},
            {"what": "images/s by the bare URI", "value": statistics.median(rates["bare"]), "wanted": ""},
            {"what": "images/s through the server", "value": statistics.median(rates["managed"]), "wanted": ""},
            {"what": "managed / bare, median over rounds", "value": ratio, "wanted": ">= 0.98"},
        ]


def _write(place: Path) -> None:
    made = penstock.create(place, {"image": penstock.Tensor("uint8", IMAGE), "label": "int64"})
    rng = np.random.default_rng(0)
    for start in range(0, ROWS, 1000):
        images = rng.integers(0, 255, (1000, *IMAGE), np.uint8)
        made.append({"image": images, "label": np.arange(start, start + 1000)})
    made.commit()
    os.sync()


def _rows_per_s(ds: Dataset) -> float:
    with ds.numpy(batch_size=64, shuffle=True, num_workers=2, memory_budget=512 << 20) as loader:
        started = time.perf_counter()
        rows = sum(len(batch["label"]) for batch in loader)
        return rows / (time.perf_counter() - started)


def _requests(server: Running) -> int:
    """Requests that the server has answered, itself counted by none of its own figures."""
    connection = server.connect()
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {server.key}"})
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line for line in text.splitlines() if line.startswith("penstock_requests_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))
