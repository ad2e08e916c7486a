"""Many clients that open one table, for a minute: latencies, errors, and processor time of the server."""

import json
import subprocess
import sys
import time
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.server.running import Running, ask

BODY = {"vend_credentials": True}


def measure(server: Running, table: str, *, clients: int, seconds: float) -> dict[str, Any]:
    """Open a table again and again from two processes of clients."""
    words = [sys.executable, "-m", "benchmarks.server.load", str(server.port), server.key, table]
    before, started = server.cpu_s(), time.monotonic()
    halves = [
        subprocess.Popen([*words, str(clients // 2), str(seconds)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    found = [json.loads(half.communicate()[0]) for half in halves]
    taken = time.monotonic() - started
    own_s, kernel_s = (after - earlier for after, earlier in zip(server.cpu_s(), before, strict=True))
    latencies = np.concatenate([np.array(part["seconds"]) for part in found])
    p50, p99 = (float(value) for value in np.percentile(latencies, (50, 99)))
    return {
        "clients": clients,
        "requests": len(latencies),
        "requests/s": len(latencies) / taken,
        "errors": sum(part["errors"] for part in found),
        "p50 ms": p50 * 1e3,
        "p99 ms": p99 * 1e3,
        "p99 / p50": p99 / p50,
        "server CPU ms per request": (own_s + kernel_s) / len(latencies) * 1e3,
        "of which in the kernel": kernel_s / len(latencies) * 1e3,
    }


def _client(port: int, key: str, table: str, until: float, seconds: list[float], errors: list[int]) -> None:
    server = Running(port, key, 0)
    connection = server.connect()
    while time.monotonic() < until:
        started = time.perf_counter()
        status, answer = ask(connection, "POST", f"/v1/table/{table}/describe", BODY, key=key)
        seconds.append(time.perf_counter() - started)
        if status != 200 or not answer["location"]:
            errors.append(status)


def main(port: str, key: str, table: str, clients: str, seconds: str) -> None:
    """Run some clients in threads, and print what they met."""
    taken: list[float] = []
    errors: list[int] = []
    until = time.monotonic() + float(seconds)
    threads = [Thread(target=_client, args=(int(port), key, table, until, taken, errors)) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": taken, "errors": len(errors)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
