"""A store in a bucket of S3, Google Cloud Storage, Azure, or a compatible service."""

import ctypes
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import obstore

from penstock.errors import AccessDeniedError, NotFoundError, PenstockWarning, SourceChangedError, StorageError
from penstock.storage import _errors
from penstock.storage._buffers import byte_view
from penstock.storage._credentials import RenewedCredentials, is_issuer_failure
from penstock.storage._keys import check_key, object_uri
from penstock.storage._obstore_clients import Client, ClientConfig, load_config, make_client
from penstock.storage._obstore_errors import (
    claim_runtime,
    is_past_end,
    is_transient,
    is_unreachable,
    runtime_is_lost,
    translated,
)
from penstock.storage._retry import RetryPolicy, retry
from penstock.storage._sidecar import list_by_sidecar, request_sidecar
from penstock.storage._store import ObjectInfo, Store
from penstock.storage._threads import interruptible, thread_map
from penstock.types import Buffer, ByteRange

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

T = TypeVar("T")

_SINGLE_PUT_BYTES = 64 << 20
_PART_BYTES = 16 << 20
_MAX_PARTS = 10_000
_PARTS_IN_FLIGHT = 4
_PART_RETRIES = 8
_LIST_PAGE = 1000
_DELETE_WORKERS = 8
_WARN_AFTER_S = 10.0
_ETAG = re.compile(r"[\x21-\x7e]+")


class ObjectStore(Store):
    """Objects in a bucket, under a prefix.

    One loop retries every call within the retry policy's deadline, with two exceptions. `create` is retried only after
    a refusal: after a lost response a second attempt could find the first one's object, so the caller reads back and
    decides. `put_stream` cannot be replayed, so obstore retries its requests one by one. A process that was forked
    after I/O reads through a sidecar and does not write. A refused request is repeated once, with new credentials if
    the store has an issuer.
    """

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str,
        *,
        options: Mapping[str, str],
        policy: RetryPolicy,
        renewed: RenewedCredentials | None,
        reached: bool = False,
    ) -> None:
        """`reached` if a request has reached the store before, from this process or another."""
        self.uri = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._folder = f"{prefix}/" if prefix else ""
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix
        self._bucket_uri = f"{scheme}://{bucket}"
        self._options = dict(options)
        self._policy = policy
        self._renewed = renewed
        self._reached = reached
        self._config: ClientConfig | None = None
        self._clients: dict[tuple[float, int], Client] = {}
        self._warned = False
        if not runtime_is_lost() and (renewed is None or renewed.current is not None):
            self._client(policy.attempt_timeout_s)  # validates the options
        _open_stores.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        reopen = partial(
            ObjectStore, options=self._options, policy=self._policy, renewed=self._renewed, reached=self._reached
        )
        return reopen, (self._scheme, self._bucket, self._prefix)

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read an object or a range of it in one request."""
        if etag is not None and not _ETAG.fullmatch(etag):  # a table may hold any text, but none becomes a header
            raise _errors.source_changed(object_uri(self.uri, key), etag)
        if runtime_is_lost():
            view: memoryview = request_sidecar(self, "get", key, byte_range, etag, deadline_s=self._policy.deadline_s)
            return view
        if byte_range is not None and not byte_range.length:
            return self._get_nothing(key, byte_range, etag)
        path, uri = self._path(key), object_uri(self.uri, key)

        def attempt(client: Client) -> memoryview:
            with translated("read", uri, etag):
                if byte_range is not None and etag is None:
                    # One call instead of three: each takes the GIL again, and metadata becomes Python objects.
                    view = memoryview(obstore.get_range(client, path, start=byte_range.start, end=byte_range.end))
                    size = byte_range.end if len(view) == byte_range.length else obstore.head(client, path)["size"]
                else:
                    view, size, found = _get_with_metadata(client, path, byte_range, etag)
                    if etag is not None and found is not None and _unquoted(found) != _unquoted(etag):
                        raise _errors.source_changed(uri, etag)  # If-Match was ignored
            expected = byte_range or ByteRange(0, size)
            if len(view) != expected.length:
                _errors.check_bounds(uri, expected, size)
                raise _errors.failed("read", uri, f"received {len(view)} bytes instead of {expected.length}")
            return view

        started = time.monotonic()
        try:
            return self._retry(attempt, started=started)
        except SourceChangedError:
            self._head(key, started)  # Azure reports a failed condition for a missing object
            raise
        except StorageError as error:
            if byte_range is not None and is_past_end(error):
                _errors.check_bounds(uri, byte_range, self._head(key, started).size)
            raise

    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata."""
        if runtime_is_lost():
            info: ObjectInfo = request_sidecar(self, "head", key, deadline_s=self._policy.deadline_s)
            return info
        return self._head(key)

    def _head(self, key: str, started: float | None = None) -> ObjectInfo:
        path, uri = self._path(key), object_uri(self.uri, key)

        def attempt(client: Client) -> ObjectInfo:
            with translated("describe", uri):
                return self._info(obstore.head(client, path))

        return self._retry(attempt, started=started)

    def put(self, key: str, data: Buffer) -> None:
        """Write an object in one request, or as a multipart upload if it is large."""
        view = byte_view(data)
        if len(view) > _SINGLE_PUT_BYTES:
            self._upload(key, [view], max(_PART_BYTES, -(-len(view) // _MAX_PARTS)))
            return
        path, uri = self._path(key), object_uri(self.uri, key)

        def attempt(client: Client) -> None:
            with _writing(self._renewed, "put", uri):
                obstore.put(client, path, view, use_multipart=False)

        self._retry(attempt)

    def create(self, key: str, data: Buffer) -> None:
        """Send one create-only write; after any error but `AlreadyExistsError` the outcome is unknown."""
        path, uri, view = self._path(key), object_uri(self.uri, key), byte_view(data)

        def attempt(client: Client) -> None:
            with _writing(self._renewed, "create", uri):
                obstore.put(client, path, view, mode="create", use_multipart=False)

        self._retry(attempt, is_transient=is_issuer_failure)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Upload parts as the chunks arrive; objects up to 160 GiB."""
        self._upload(key, chunks, _PART_BYTES)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List page by page; after a failure the listing resumes after the last key it returned."""
        for page in self.list_pages(prefix):
            yield from page

    def list_pages(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """Yield the pages of a listing, some of them empty, each within the deadline."""
        if runtime_is_lost():
            yield from list_by_sidecar(self, prefix, deadline_s=self._policy.deadline_s)
            return
        start, uri = self._folder + prefix, object_uri(self.uri, prefix)
        folder = start.rpartition("/")[0]
        if folder:
            check_key(folder)
        pages: Iterator[Sequence[ObjectMeta]] | None = None
        resumed = last = ""

        def next_page(client: Client) -> "Sequence[ObjectMeta] | None":
            nonlocal pages, resumed
            try:
                with translated("list", uri):
                    if pages is None:
                        resumed = last
                        offset = last or None
                        pages = iter(obstore.list(client, folder or None, offset=offset, chunk_size=_LIST_PAGE))
                    return next(pages, None)
            except StorageError:
                pages = None
                raise

        while (page := self._retry(next_page)) is not None:
            infos = []
            for meta in page:
                path = meta["path"]
                if path <= resumed:  # Azurite ignores the offset
                    continue
                if path <= last:
                    raise _errors.failed("list", uri, "the store does not list keys in order")
                last = path
                if path.startswith(start):
                    infos.append(self._info(meta))
            yield infos
            if last > start and not last.startswith(start):
                return

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects in bulk, or one by one where a missing key fails the bulk request."""
        paths = [self._path(key) for key in keys]
        for first in range(0, len(paths), _LIST_PAGE):
            batch = paths[first : first + _LIST_PAGE]
            try:
                self._delete(batch)
            except NotFoundError:
                thread_map(self._delete_one, batch, max_workers=_DELETE_WORKERS)

    def _delete_one(self, path: str) -> None:
        with suppress(NotFoundError):
            self._delete([path])

    def _delete(self, paths: Sequence[str]) -> None:
        def attempt(client: Client) -> None:
            with _writing(self._renewed, "delete", object_uri(self._bucket_uri, paths[0])):
                obstore.delete(client, paths)

        self._retry(attempt)

    def _get_nothing(self, key: str, byte_range: ByteRange, etag: str | None) -> memoryview:
        """Read an empty range, which HTTP cannot express."""
        info = self.head(key)
        if etag is not None and etag != info.etag:
            raise _errors.source_changed(object_uri(self.uri, key), etag)
        _errors.check_bounds(object_uri(self.uri, key), byte_range, info.size)
        return memoryview(b"")

    def _upload(self, key: str, chunks: Iterable[Buffer], part_bytes: int) -> None:
        path, uri = self._path(key), object_uri(self.uri, key)
        failures: list[BaseException] = []

        def recorded() -> Iterator[memoryview]:
            try:
                for chunk in chunks:
                    yield byte_view(chunk)
            except BaseException as error:
                failures.append(error)
                raise

        client = self._retry(lambda _: self._client(self._policy.attempt_timeout_s, max_retries=_PART_RETRIES))
        try:
            with _writing(self._renewed, "put", uri):
                obstore.put(
                    client,
                    path,
                    recorded(),
                    use_multipart=True,
                    chunk_size=part_bytes,
                    max_concurrency=_PARTS_IN_FLIGHT,
                )
        except Exception:
            if failures:  # the caller's iterable failed, not the store
                raise failures[0] from None
            raise

    def _retry(
        self,
        attempt: Callable[[Client], T],
        is_transient: Callable[[StorageError], bool] = is_transient,
        started: float | None = None,
    ) -> T:
        def timed(timeout_s: float) -> T:
            claim_runtime()
            begun_s = time.monotonic()
            used = self._renewed and self._renewed.ensure(timeout_s)
            waited_s = round(time.monotonic() - begun_s, 1)  # mostly nothing: each timeout needs a client of its own
            reached = True
            try:
                client = self._client(timeout_s - waited_s)
                return interruptible(lambda: attempt(client))
            except AccessDeniedError:
                try:
                    if self._renewed and used:
                        self._renewed.replace(used, begun_s + timeout_s - time.monotonic())
                finally:
                    self._config, self._clients = None, {}  # so that renewed credentials are read
                raise
            except StorageError as error:
                reached = not is_unreachable(error)
                raise
            finally:
                self._reached = self._reached or reached

        return retry(
            self._policy, timed, started=started, on_retry=self._on_retry, is_transient=is_transient,
            is_unreachable=lambda error: not self._reached and is_unreachable(error),
        )  # fmt: skip

    def _on_retry(self, elapsed_s: float, error: StorageError) -> None:
        self.retries += 1
        if elapsed_s > _WARN_AFTER_S and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.uri} does not answer for {elapsed_s:.0f} s; each request is tried for up to "
                f"{self._policy.deadline_s:.0f} s: {error}",
                PenstockWarning,
                stacklevel=2,
            )

    def _client(self, max_timeout_s: float, max_retries: int = 0) -> Client:
        """A cached client with a timeout of at most `max_timeout_s`: timeouts belong to clients, not to requests."""
        timeout_s = self._policy.attempt_timeout_s
        while timeout_s > max(max_timeout_s, 0.05):
            timeout_s /= 2
        client = self._clients.get((timeout_s, max_retries))
        if client is None:
            if (config := self._config) is None:
                config = self._config = load_config(self._scheme, self._options, self._renewed)
            client = self._clients[timeout_s, max_retries] = make_client(
                self._scheme,
                self._bucket,
                config,
                timeout_s=timeout_s,
                max_retries=max_retries,
                retry_timeout_s=self._policy.deadline_s,
            )
        return client

    def _path(self, key: str) -> str:
        check_key(key)
        return self._folder + key

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        etag = meta["e_tag"]
        if etag is not None and not etag.endswith('"'):  # Azure's listings omit the quotes
            etag = f'"{etag}"'
        key = meta["path"].removeprefix(self._folder)
        return ObjectInfo(key=key, size=meta["size"], etag=etag, modified_s=meta["last_modified"].timestamp())


def _writing(renewed: RenewedCredentials | None, verb: str, uri: str) -> AbstractContextManager[None]:
    """Translate the errors of a write; credentials that are known to be for reading are not sent."""
    if renewed is not None:
        renewed.check_writable(verb, uri)
    return translated(verb, uri)


def _get_with_metadata(
    client: Client, path: str, byte_range: ByteRange | None, etag: str | None
) -> tuple[memoryview, int, str | None]:
    """The bytes of an object or a range of it, the size of the object, and its ETag."""
    options: GetOptions = {}
    if byte_range is not None:
        options["range"] = (byte_range.start, byte_range.end)
    if etag is not None:
        options["if_match"] = etag
    result = obstore.get(client, path, options=options)
    size, found = result.meta["size"], result.meta["e_tag"]
    return memoryview(result.bytes()), size, found


def _unquoted(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


_open_stores: WeakSet[ObjectStore] = WeakSet()


def _reset_after_fork() -> None:
    for store in _open_stores:
        if store._renewed is not None:
            store._renewed.reset_after_fork()
        if runtime_is_lost():
            # Never free an inherited client: its destructor would wait for threads and locks that the fork left behind.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store._clients))
            store._clients = {}


os.register_at_fork(after_in_child=_reset_after_fork)
