"""Tables on servers that answer reads and nothing else: static web servers, CDNs, mirrors."""

import http.client
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from torch.utils.data import DataLoader

import penstock
from penstock import Dataset, Tensor
from penstock.errors import PenstockWarning, StorageError
from penstock.storage import open_store
from tests.servers import StoreLocation, moto_port, new_location, s3_options

ROWS = 64
HANG_S = 120.0

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def place() -> StoreLocation:
    """A table of its own for each test: a warning is given once for each address."""
    location = new_location("s3")
    ds = penstock.create(location.uri, {"n": Tensor("int64")}, storage_options=location.options)
    ds.append({"n": np.arange(ROWS)})
    ds.commit()
    return location


@contextmanager
def read_only(status: int | None) -> Iterator[tuple[str, list[str]]]:
    """The endpoint of a server that answers a write with `status`, or not at all, and the writes that it got."""
    writes: list[str] = []
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def read(self) -> None:
            upstream = http.client.HTTPConnection("127.0.0.1", moto_port())
            upstream.request(self.command, self.path, headers=dict(self.headers))
            response = upstream.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("connection", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.read())
            upstream.close()

        def write(self) -> None:
            writes.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if status is None:
                stopping.wait()
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = read  # noqa: N815
        do_PUT = do_POST = do_DELETE = write  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", writes
        finally:
            stopping.set()
            server.shutdown()
            thread.join()


def in_time(read: Callable[[], list[int]]) -> tuple[list[int], list[str]]:
    """What a function returns, and Penstock's warnings; fails if it hangs."""
    found: list[list[int]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
        thread.start()
        thread.join(HANG_S)
    assert not thread.is_alive(), "it hangs"
    ours = [str(warning.message) for warning in caught if issubclass(warning.category, PenstockWarning)]
    return found[0], ours


def rows_of(ds: Dataset, num_workers: int = 0) -> list[int]:
    return [int(n) for batch in DataLoader(ds.pytorch(), batch_size=16, num_workers=num_workers) for n in batch["n"]]


@pytest.mark.parametrize(
    ("status", "num_workers"), [(405, 0), (405, 2), (403, 0), (404, 0), (501, 0), (503, 0), (None, 2)]
)
def test_a_lease_that_cannot_be_written_is_a_warning(
    place: StoreLocation, status: int | None, num_workers: int
) -> None:
    with read_only(status) as (endpoint, writes):
        ds = penstock.load(place.uri, storage_options=s3_options(endpoint))
        found, warned = in_time(lambda: rows_of(ds, num_workers))
    assert found == list(range(ROWS))
    assert writes
    assert len(warned) == 1
    assert "no lease protects this version from vacuum" in warned[0]


def test_a_write_that_the_server_does_not_implement_is_sent_once(place: StoreLocation) -> None:
    with read_only(501) as (endpoint, writes):
        store = open_store(place.uri, options=s3_options(endpoint))
        with pytest.raises(StorageError, match="501"):
            store.put("k", b"x")
        assert len(writes) == 1


def test_a_block_with_a_lease_runs_without_one(place: StoreLocation) -> None:
    def read() -> list[int]:
        with ds.lease(timedelta(days=1)):
            return ds["n"][:].tolist()  # type: ignore[no-any-return]

    with read_only(405) as (endpoint, _):
        ds = penstock.load(place.uri, storage_options=s3_options(endpoint))
        found, warned = in_time(read)
    assert found == list(range(ROWS))
    assert ["no lease protects this version from vacuum" in text for text in warned] == [True]
