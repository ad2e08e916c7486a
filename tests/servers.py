"""Real servers for the tests, started on first use and stopped with the process, however it ends."""

import atexit
import base64
import hashlib
import hmac
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from pathlib import Path

from penstock.storage import RetryPolicy, Store, open_store
from penstock.testing import FakeGcs

KINDS = ("memory", "folder", "s3", "gs", "az")

_MOTO = Path(__file__).with_name("atomic_moto.py")
_AZURITE = Path(__file__).parents[1] / ".servers/node_modules/.bin/azurite-blob"
_ACCOUNT = "devstoreaccount1"  # azurite's published account and key
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# The server lives while the shell's input is open: the kernel closes it even if pytest is killed.
_WATCHED = 'exec 3<&0; "$@" </dev/null & server=$!; { read _ <&3; kill $server; } 2>/dev/null & wait $server'


@dataclass(frozen=True)
class StoreLocation:
    """The address of an empty store, and the options to open it."""

    uri: str
    options: dict[str, str] = field(default_factory=dict)

    def open(self, retry: RetryPolicy | None = None) -> Store:
        return open_store(self.uri, options=self.options, retry=retry)


def new_location(kind: str) -> StoreLocation:
    """Return a new location of that kind; starts its server if necessary."""
    return _MAKERS[kind](f"test-{secrets.token_hex(6)}")


def _memory(name: str) -> StoreLocation:
    return StoreLocation(f"memory://{name}")


def _folder(name: str) -> StoreLocation:
    return StoreLocation(str(_scratch() / name))


def _s3(name: str) -> StoreLocation:
    return StoreLocation(f"s3://bucket/{name}", s3_options(f"http://127.0.0.1:{moto_port()}"))


def _gs(name: str) -> StoreLocation:
    server = _fake_gcs()
    return StoreLocation(f"{server.uri}/{name}", server.options)


def _az(name: str) -> StoreLocation:
    endpoint = f"http://127.0.0.1:{_azurite_port()}/{_ACCOUNT}"
    return StoreLocation(
        f"az://bucket/{name}", {"account_name": _ACCOUNT, "account_key": _ACCOUNT_KEY, "endpoint": endpoint}
    )


_MAKERS: dict[str, Callable[[str], StoreLocation]] = {
    "memory": _memory,
    "folder": _folder,
    "s3": _s3,
    "gs": _gs,
    "az": _az,
}


def s3_options(endpoint: str) -> dict[str, str]:
    return {"endpoint": endpoint, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


def s3_environment(endpoint: str) -> dict[str, str]:
    """The same settings as environment variables."""
    return {f"AWS_{name.upper()}": value for name, value in s3_options(endpoint).items()}


@cache
def moto_bucket(name: str) -> str:
    """Create a bucket on the S3 server, and return the server's endpoint."""
    endpoint = f"http://127.0.0.1:{moto_port()}"
    _request("PUT", f"{endpoint}/{name}", {})
    return endpoint


@cache
def _scratch() -> Path:
    folder = tempfile.mkdtemp(prefix="penstock-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _fake_gcs() -> FakeGcs:
    server = FakeGcs().start()
    atexit.register(server.stop)
    return server


@cache
def moto_port() -> int:
    port = _start("moto", [sys.executable, str(_MOTO), "-H", "127.0.0.1", "-p", "{port}"])
    _request("PUT", f"http://127.0.0.1:{port}/bucket", {})
    return port


@cache
def _azurite_port() -> int:
    if not _AZURITE.exists():
        raise RuntimeError("azurite is not installed; run `make test`, or scripts/install_servers.sh once")
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    port = _start("azurite", [str(_AZURITE), "--blobHost", "127.0.0.1", "--blobPort", "{port}", *flags])
    now = formatdate(usegmt=True)
    signed = f"x-ms-date:{now}\nx-ms-version:2021-08-06\n/{_ACCOUNT}/{_ACCOUNT}/bucket\nrestype:container"
    digest = hmac.new(base64.b64decode(_ACCOUNT_KEY), f"PUT{chr(10) * 12}{signed}".encode(), hashlib.sha256).digest()
    authorization = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06", "Authorization": authorization, "Content-Length": "0"}
    _request("PUT", f"http://127.0.0.1:{port}/{_ACCOUNT}/bucket?restype=container", headers)
    return port


def _request(method: str, url: str, headers: dict[str, str]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.open(urllib.request.Request(url, method=method, headers=headers), timeout=240).close()


def _start(name: str, command: Sequence[str]) -> int:
    """Start a server on a free port and wait until it accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    log_path = _scratch() / f"{name}-{port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *(word.format(port=port) for word in command)],
            cwd=_scratch(),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    atexit.register(process.communicate)  # closes its input and waits
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return port
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{name} did not start; its log:\n{log_path.read_text(errors='replace')}")
