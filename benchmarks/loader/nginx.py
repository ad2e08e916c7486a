"""A read-only S3 endpoint on loopback: nginx serving a folder as /bucket/key, from Debian's package, not installed."""

import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HOME = Path(__file__).parents[2] / ".servers" / "nginx"
_LIBRARIES = ("libcrypt1", "libpcre2-8-0", "libssl3", "zlib1g")


@dataclass(frozen=True)
class Answer:
    """One line of the server's log."""

    method: str
    key: str
    status: int
    bytes: int
    start: int
    """Where in the object its bytes start."""

    @property
    def end(self) -> int:
        return self.start + self.bytes


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    log: Path | None
    tls: bool = False

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def answers(self) -> list[Answer]:
        """What has been asked so far, if it is written down."""
        assert self.log is not None, "this server keeps no log"
        return [_answer(*line.split()) for line in self.log.read_text().splitlines()]


def options(endpoint: str) -> dict[str, str]:
    """How to reach such a server, by obstore's names."""
    connection = "allow_invalid_certificates" if endpoint.startswith("https") else "allow_http"
    return {"endpoint": endpoint, "region": "us-east-1", "skip_signature": "true", connection: "true"}


@contextmanager
def serve(root: Path, *, log: bool = False, listed: str = "", tls: bool = False) -> Iterator[Server]:
    """Serve the folders under `root` as buckets; with `log`, write down every request, which costs some speed.

    The bucket that is `listed` answers requests for a list of its objects with all that it has now. With `tls`, it
    serves HTTPS with a self-signed certificate.
    """
    program, environment = _program()
    with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        server = Server(port, Path(place, "access.log") if log else None, tls)
        if tls:
            _certify(Path(place))
        if listed:
            Path(place, "list.xml").write_text(_list(root, listed))
        Path(place, "nginx.conf").write_text(_configuration(root, Path(place), server, listed))
        command = [program, "-p", place, "-c", f"{place}/nginx.conf", "-e", f"{place}/error.log"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        try:
            _wait(port, process)
            yield server
        finally:
            process.terminate()
            process.wait(20)


def version() -> str:
    program, environment = _program()
    found = subprocess.run([program, "-v"], env=environment, capture_output=True, text=True, check=True)
    return found.stderr.strip().rpartition("/")[2]


def _list(root: Path, bucket: str) -> str:
    """What S3 says when it is asked for the objects of a bucket."""
    items = []
    for path in sorted(path for path in (root / bucket).rglob("*") if path.is_file()):
        at = datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat().replace("+00:00", ".000Z")
        items.append(
            f"<Contents><Key>{path.relative_to(root / bucket).as_posix()}</Key><LastModified>{at}</LastModified>"
            f"<Size>{path.stat().st_size}</Size></Contents>"
        )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><KeyCount>{len(items)}</KeyCount><MaxKeys>{len(items)}</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{''.join(items)}</ListBucketResult>"
    )


def _configuration(root: Path, place: Path, server: Server, listed: str) -> str:
    listing = f"location = /{listed} {{ default_type application/xml; alias {place}/list.xml; }}" if listed else ""
    temporary = "\n".join(
        f"  {kind}_temp_path {place}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    log = f"{server.log} lines" if server.log else "off"
    tls = f"ssl_certificate {place}/cert.pem; ssl_certificate_key {place}/key.pem;" if server.tls else ""
    user = "user root root;" if os.geteuid() == 0 else ""
    return f"""{user}
daemon off;
worker_processes auto;
worker_rlimit_nofile 8192;
pid {place}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  default_type application/octet-stream;
  log_format lines '$request_method $uri $status $body_bytes_sent $http_range';
  access_log {log};
  sendfile on;
  sendfile_max_chunk 1m;
  tcp_nopush on;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  open_file_cache max=4000;
{temporary}
  server {{
    listen 127.0.0.1:{server.port} backlog=4096{" ssl" if server.tls else ""};
    {tls}
    root {root};
    {listing}
  }}
}}
"""


def _certify(place: Path) -> None:
    """A key and a self-signed certificate."""
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    subprocess.run(
        [*request, *files, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )


def _answer(method: str, key: str, status: str, size: str, asked: str = "-") -> Answer:
    """A line of the log; a range is `bytes=START-END`, and `-` where the whole object was asked for."""
    start = asked.removeprefix("bytes=").partition("-")[0]
    return Answer(method, key, int(status), int(size), int(start or 0))


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("nginx did not start; its words are above")


def _program() -> tuple[str, dict[str, str]]:
    """The program, unpacked if need be, and the environment that finds its libraries."""
    if installed := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return installed, dict(os.environ)
    program = HOME / "usr" / "sbin" / "nginx"
    libraries = HOME / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    environment = dict(os.environ) | {"LD_LIBRARY_PATH": str(libraries)}
    if not program.exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise RuntimeError("this benchmark needs nginx: install it, or run where Debian packages can be fetched")
        _unpack("nginx")
        if "not found" in subprocess.run(["ldd", program], env=environment, capture_output=True, text=True).stdout:
            for name in _LIBRARIES:
                _unpack(name)
    return str(program), environment


def _unpack(package: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["apt-get", "-q", "download", package], cwd=place, check=True, capture_output=True)
        HOME.mkdir(parents=True, exist_ok=True)
        for file in Path(place).glob("*.deb"):
            subprocess.run(["dpkg", "-x", file, HOME], check=True)
