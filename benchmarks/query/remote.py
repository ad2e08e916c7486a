"""Our table by way of an S3 endpoint on loopback that answers late, with all reads written down."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import penstock
from benchmarks.loader import nginx
from benchmarks.loader.nginx import Server
from benchmarks.loader.proxy import Delays, proxy
from benchmarks.loader.tables import BUCKET
from benchmarks.query.bench import Bench
from benchmarks.query.store import RecordingStore
from penstock.storage import open_store


@dataclass
class Remote:
    """A table that is far away."""

    ds: penstock.Dataset
    store: RecordingStore
    server: Server
    answered: int = 0
    """Requests that do not count."""

    def reset(self) -> None:
        """Count anew."""
        self.store.reset()
        self.answered = len(self.server.answers())

    def requests(self) -> int:
        """Requests that the server has answered since."""
        return len(self.server.answers()) - self.answered


@contextmanager
def remote(bench: Bench, version: str) -> Iterator[Remote]:
    """The table at one of its versions; each request takes `delay_ms` longer."""
    uri = f"s3://{BUCKET}/{bench.tables.ours.name}"
    with (
        nginx.serve(bench.tables.folder, log=True) as server,
        proxy(server.port, Delays(bench.delay_ms)) as endpoint,
    ):
        store = RecordingStore(open_store(uri, options=nginx.options(endpoint)))
        yield Remote(bench.tables.open(version, store), store, server)
