"""`python -m benchmarks server`: what the server costs, in one table and one JSON file."""

import argparse
from collections.abc import Sequence

from benchmarks.report import publish, scratch, versions_of
from benchmarks.server import keys, load, streaming
from benchmarks.server.running import served
from tests.servers import new_database

_PACKAGES = ("sqlalchemy", "psycopg", "starlette", "uvicorn")


def main(words: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks server", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the clients open tables")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7, help="of streaming")
    given = parser.parse_args(words)
    figures = []
    with scratch() as folder:
        figures += streaming.measure(new_database(), folder, rounds=given.rounds)
    with scratch() as folder:
        for workers in (1, 2):
            with served(
                new_database(), str(folder / f"tables-{workers}"), "--workers", str(workers), "--rate-limit", "100000"
            ) as server:
                server.ask("POST", "/v1/table/default$robots/declare", {})
                found = load.measure(server, "default$robots", clients=given.clients, seconds=given.seconds)
                name = f"{given.clients} clients, {given.seconds:g} s, {workers} process{'es' * (workers > 1)}"
                figures += [
                    {"what": f"{name}: {key}", "value": value, "wanted": _WANTED.get(key, "")}
                    for key, value in found.items()
                    if key != "clients"
                ]
                if workers > 1:
                    figures.append(keys.measure(server))
    publish(
        "server", figures, command=" ".join(["python -m benchmarks server", *words]), versions=versions_of(*_PACKAGES),
        note="server, PostgreSQL and clients on the same machine",
    )  # fmt: skip


_WANTED = {"errors": "0", "p99 / p50": "<= 4", "server CPU ms per request": "<= 1"}
