"""A small, strict fake of Google Cloud Storage's XML API for tests."""

import hashlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

_MIN_PART_BYTES = 5 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    generation: int
    modified_s: float = field(default_factory=time.time)

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{self.generation:032x}"',
            "Last-Modified": formatdate(self.modified_s, usegmt=True),
            "x-goog-generation": str(self.generation),
        }


@dataclass(slots=True)
class _ResponseError(Exception):
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _error(status: int, code: str) -> _ResponseError:
    return _ResponseError(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


class FakeGcs:
    """A server with one bucket, used with `with`, or with `start` and `stop`.

    `honours_conditions=False` makes it ignore `If-Match` and `x-goog-if-generation-match`, as a non-conforming store
    would. `update_interval_s` is the minimum time between two updates of one key; the real service's is 1 s.
    `accepts_token` decides which bearer tokens are valid; without it none is needed.
    """

    def __init__(
        self,
        bucket: str = "bucket",
        *,
        honours_conditions: bool = True,
        update_interval_s: float = 0.0,
        accepts_token: Callable[[str], bool] | None = None,
    ) -> None:
        self._bucket = bucket
        self._honours_conditions = honours_conditions
        self._update_interval_s = update_interval_s
        self._accepts_token = accepts_token
        self._objects: dict[str, _Object] = {}
        self._updated_s: dict[str, float] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._counter = itertools.count(1)
        self._lock = threading.Lock()
        self._server = _server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def uri(self) -> str:
        """The bucket's URI."""
        return f"gs://{self._bucket}"

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def options(self) -> dict[str, str]:
        """Options for `open_store`: an account that requests no token."""
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        return {"service_account_key": json.dumps(account | {"private_key_id": ""})}

    def add(self, key: str, data: bytes) -> None:
        """Store an object under any key, including keys that a client would refuse."""
        with self._lock:
            self._objects[key] = _Object(data, next(self._counter))

    def start(self) -> Self:
        """Serve until `stop`."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and discard all objects."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> _ResponseError:
        if self._accepts_token and not self._accepts_token(headers.get("authorization", "").removeprefix("Bearer ")):
            raise _error(401, "AuthenticationRequired")
        address = urlsplit(target)
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        if bucket != self._bucket:
            raise _error(404, "NoSuchBucket")
        with self._lock:
            if not key:
                return self._list(query)
            if method in ("GET", "HEAD"):
                return self._read(key, headers)
            if method == "DELETE" and not query:
                self._find(key)
                return self._update(key, None)
            if method == "PUT" and not query:
                return self._put(key, headers, body)
            return self._multipart(method, key, query, body)

    def _find(self, key: str) -> _Object:
        if key not in self._objects:
            raise _error(404, "NoSuchKey")
        return self._objects[key]

    def _read(self, key: str, headers: dict[str, str]) -> _ResponseError:
        found = self._find(key)
        etag = found.headers["ETag"]
        if self._honours_conditions and headers.get("if-match", etag) != etag:
            raise _error(412, "PreconditionFailed")
        if "range" not in headers:
            return _ResponseError(200, found.data, found.headers)
        requested = _RANGE.fullmatch(headers["range"])
        size = len(found.data)
        if requested is None:
            raise _error(400, "InvalidArgument")
        start, end = int(requested[1]), min(int(requested[2] or size) + 1, size)
        if start >= size:
            raise _error(416, "InvalidRange")
        extra = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return _ResponseError(206, found.data[start:end], found.headers | extra)

    def _put(self, key: str, headers: dict[str, str], body: bytes) -> _ResponseError:
        condition = headers.get("x-goog-if-generation-match")
        current = self._objects[key].generation if key in self._objects else 0
        if condition is not None and self._honours_conditions and int(condition) != current:
            raise _error(412, "PreconditionFailed")
        return self._update(key, body)

    def _update(self, key: str, data: bytes | None) -> _ResponseError:
        now = time.monotonic()
        if now - self._updated_s.get(key, float("-inf")) < self._update_interval_s:
            raise _error(429, "SlowDown")
        self._updated_s[key] = now
        if data is None:
            del self._objects[key]
            return _ResponseError(204)
        self._objects[key] = _Object(data, next(self._counter))
        return _ResponseError(200, b"", self._objects[key].headers)

    def _multipart(self, method: str, key: str, query: dict[str, str], body: bytes) -> _ResponseError:
        if method == "POST" and set(query) == {"uploads"}:
            upload = f"upload-{next(self._counter)}"
            self._uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        upload = query.get("uploadId", "")
        if upload not in self._uploads:
            raise _error(404, "NoSuchUpload")
        parts = self._uploads[upload]
        if method == "PUT" and set(query) == {"partNumber", "uploadId"}:
            parts[int(query["partNumber"])] = body
            return _ResponseError(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        del self._uploads[upload]
        if method == "DELETE":
            return _ResponseError(204)
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        if not numbers or numbers != sorted(parts):
            raise _error(400, "InvalidPart")
        if any(len(parts[number]) < _MIN_PART_BYTES for number in numbers[:-1]):
            raise _error(400, "EntityTooSmall")
        headers = self._update(key, b"".join(parts[number] for number in numbers)).headers
        response = _xml("CompleteMultipartUploadResult", f"<ETag>{escape(headers['ETag'])}</ETag>")
        return _ResponseError(200, response.body, headers)

    def _list(self, query: dict[str, str]) -> _ResponseError:
        if not query.keys() <= {"list-type", "prefix", "start-after", "continuation-token", "max-keys"}:
            raise _error(400, "InvalidArgument")
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(key for key in self._objects if key.startswith(query.get("prefix", "")) and key > after)
        page = keys[: int(query.get("max-keys", 1000))]
        entries = "".join(_entry(key, self._objects[key]) for key in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(page) < len(keys) else ""
        return _xml("ListBucketResult", f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{token}{entries}")


def _entry(key: str, value: _Object) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(value.modified_s))
    etag = escape(value.headers["ETag"])
    return (
        f"<Contents><Key>{escape(key)}</Key><Generation>{value.generation}</Generation><ETag>{etag}</ETag>"
        f"<LastModified>{modified}</LastModified><Size>{len(value.data)}</Size></Contents>"
    )


def _xml(root: str, inside: str) -> _ResponseError:
    return _ResponseError(200, f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inside}</{root}>'.encode())


def _server(fake: FakeGcs) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client may disconnect at any time
                super().handle()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                response = fake._respond(self.command, self.path, headers, body)
            except _ResponseError as error:
                response = error
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    return Server(("127.0.0.1", 0), Handler)
