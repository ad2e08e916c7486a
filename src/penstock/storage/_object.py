"""A store in a bucket of S3, Google Cloud Storage or Azure, or of anything that speaks as they do."""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import obstore

from penstock.errors import AccessDenied, NotFoundError, SourceChanged, StorageError
from penstock.storage import _outcomes
from penstock.storage._ahead import Ahead
from penstock.storage._buffers import fill, new_buffer
from penstock.storage._clouds import Client, make_client, plain_urls
from penstock.storage._gate import claim_runtime, is_past_end, is_transient, runtime_is_lost, translated
from penstock.storage._inputs import byte_view, check_key, object_uri
from penstock.storage._plain_each import PlainEach, Whole
from penstock.storage._plain_http import PlainHttp
from penstock.storage._pool import interruptible, run_all
from penstock.storage._retry import RetryPolicy, retry
from penstock.storage._sidecar import ask_sidecar, list_by_sidecar
from penstock.storage._store import Gone, ObjectInfo, Store
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
_MIN_STRAIGHT_BYTES = 64 << 10  # for less, obstore is as quick


class ObjectStore(Store):
    """Objects in a bucket, under a prefix.

    Every verb but two is repeated by one loop within the retry policy's deadline. `create` is repeated only after a
    refusal: repeated after a lost answer it would meet its own write, so the caller reads back and decides.
    `put_stream` cannot be repeated, so its requests are, one by one. A process forked after I/O reads by a sidecar,
    does not write, and leaves obstore alone.
    """

    def __init__(
        self, scheme: str, bucket: str, prefix: str, *, options: Mapping[str, str], policy: RetryPolicy
    ) -> None:
        self.uri = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._folder = f"{prefix}/" if prefix else ""
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix
        self._bucket_uri = f"{scheme}://{bucket}"
        self._options = dict(options)
        self._policy = policy
        self._clients: dict[tuple[float, int], Client] = {}
        self._plain: PlainHttp | None = None
        self._plain_each: PlainEach | None = None
        if not runtime_is_lost():
            self._client(policy.attempt_timeout_s)  # meets wrong options at once
            urls = plain_urls(scheme, bucket, options, lambda: self._client(policy.attempt_timeout_s))
            if urls is not None:
                self._plain = PlainHttp(urls, timeout_s=policy.attempt_timeout_s)
                self._plain_each = PlainEach(self._plain)
        _opened.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._scheme, self._bucket, self._prefix, self._options, self._policy)

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read an object or a part of it in one request."""
        if byte_range is not None and byte_range.length >= _MIN_STRAIGHT_BYTES and self.straight:
            view = new_buffer(byte_range.length)
            if self._read_straight(key, byte_range.start, [view], etag=etag):
                return view.toreadonly()
        return self._get(key, byte_range, etag)

    def get_each(self, objects: Sequence[ObjectInfo], ahead: Ahead) -> Iterator[memoryview | Gone]:
        """Read whole objects: small ones straight from the network if that works, the others by obstore in threads."""
        if self._plain_each is None or not self.straight:
            return super().get_each(objects, ahead)
        claim_runtime()
        wanted = [Whole(self._path(it.key), it.size, it.etag) for it in objects]
        return self._plain_each.read(wanted, lambda number: self._get_listed(objects[number]), ahead)

    def _get(self, key: str, byte_range: ByteRange | None, etag: str | None = None) -> memoryview:
        """The same by obstore."""
        if runtime_is_lost():
            view: memoryview = ask_sidecar(self, "get", key, byte_range, etag, deadline_s=self._policy.deadline_s)
            return view
        if byte_range is not None and not byte_range.length:
            return self._get_nothing(key, byte_range, etag)
        path, uri = self._path(key), object_uri(self.uri, key)
        options: GetOptions = {}
        if byte_range is not None:
            options["range"] = (byte_range.start, byte_range.end)
        if etag is not None:
            options["if_match"] = etag

        def attempt(client: Client) -> memoryview:
            with translated("read", uri, etag):
                result = obstore.get(client, path, options=options)
                size, view = result.meta["size"], memoryview(result.bytes())
            wanted = byte_range or ByteRange(0, size)
            if len(view) != wanted.length:
                _outcomes.check_bounds(uri, wanted, size)
                raise _outcomes.failed("read", uri, f"{len(view)} bytes came instead of {wanted.length}")
            return view

        try:
            return self._retry(attempt)
        except SourceChanged:
            self.head(key)  # Azure finds the condition broken where nothing is
            raise
        except StorageError as error:
            if byte_range is not None and is_past_end(error):
                _outcomes.check_bounds(uri, byte_range, self.head(key).size)
            raise

    @property
    def straight(self) -> bool:  # type: ignore[override]
        """Whether bytes come without TLS, so that they need not be obstore's first."""
        return self._plain is not None and self._plain.serves and not runtime_is_lost()

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview], *, late_s: float | None = None) -> None:
        """Read straight from the network if that works, or else by obstore, which is never given up as late."""
        if not self._read_straight(key, start, buffers, late_s=late_s):
            fill(buffers, self._get(key, ByteRange(start, start + sum(map(len, buffers)))))

    def _read_straight(
        self,
        key: str,
        start: int,
        buffers: Sequence[memoryview],
        *,
        etag: str | None = None,
        late_s: float | None = None,
    ) -> bool:
        """Whether obstore need not be asked."""
        if self._plain is None or not self.straight or not any(map(len, buffers)):
            return False
        claim_runtime()
        try:
            if self._plain.read(self._path(key), start, buffers, etag=etag, late_s=late_s):
                return True
        except TimeoutError as error:
            raise _outcomes.timed_out("read", object_uri(self.uri, key), str(error)) from error
        self._count_retry()
        return False

    def head(self, key: str) -> ObjectInfo:
        """Describe an object."""
        if runtime_is_lost():
            info: ObjectInfo = ask_sidecar(self, "head", key, deadline_s=self._policy.deadline_s)
            return info
        path, uri = self._path(key), object_uri(self.uri, key)

        def attempt(client: Client) -> ObjectInfo:
            with translated("describe", uri):
                return self._info(obstore.head(client, path))

        return self._retry(attempt)

    def put(self, key: str, data: Buffer) -> None:
        """Write an object: in one request, or in parts if it is large."""
        view = byte_view(data)
        if len(view) > _SINGLE_PUT_BYTES:
            self._upload(key, [view], max(_PART_BYTES, -(-len(view) // _MAX_PARTS)))
            return
        path, uri = self._path(key), object_uri(self.uri, key)

        def attempt(client: Client) -> None:
            with translated("put", uri):
                obstore.put(client, path, view, use_multipart=False)

        self._retry(attempt)

    def create(self, key: str, data: Buffer) -> None:
        """Ask for a create-only write; any error but `AlreadyExistsError` leaves its outcome unknown."""
        path, uri, view = self._path(key), object_uri(self.uri, key), byte_view(data)

        def attempt(client: Client) -> None:
            with translated("create", uri):
                obstore.put(client, path, view, mode="create", use_multipart=False)

        self._retry(attempt, is_transient=lambda _: False)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Upload parts while the chunks come; objects up to 160 GiB."""
        self._upload(key, chunks, _PART_BYTES)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the listing page by page; a walk that breaks goes on after the last key it gave."""
        for page in self.list_pages(prefix):
            yield from page

    def list_pages(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """Walk the pages of the listing, some of them empty; each comes within the deadline."""
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
                    raise _outcomes.failed("list", uri, "the store does not list keys in order")
                last = path
                if path.startswith(start):
                    infos.append(self._info(meta))
            yield infos
            if last > start and not last.startswith(start):
                return

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects in bulk, or one by one where a missing key stops the bulk."""
        paths = [self._path(key) for key in keys]
        for first in range(0, len(paths), _LIST_PAGE):
            batch = paths[first : first + _LIST_PAGE]
            try:
                self._delete(batch)
            except NotFoundError:
                run_all(self._delete_one, batch, max_workers=_DELETE_WORKERS)

    def _delete_one(self, path: str) -> None:
        with suppress(NotFoundError):
            self._delete([path])

    def _delete(self, paths: Sequence[str]) -> None:
        def attempt(client: Client) -> None:
            with translated("delete", object_uri(self._bucket_uri, paths[0])):
                obstore.delete(client, paths)

        self._retry(attempt)

    def _get_nothing(self, key: str, byte_range: ByteRange, etag: str | None) -> memoryview:
        """Answer an empty range, which HTTP cannot ask for."""
        info = self.head(key)
        if etag is not None and etag != info.etag:
            raise _outcomes.source_changed(object_uri(self.uri, key), etag)
        _outcomes.check_bounds(object_uri(self.uri, key), byte_range, info.size)
        return memoryview(b"")

    def _upload(self, key: str, chunks: Iterable[Buffer], part_bytes: int) -> None:
        path, uri = self._path(key), object_uri(self.uri, key)
        failures: list[BaseException] = []

        def watched() -> Iterator[memoryview]:
            try:
                for chunk in chunks:
                    yield byte_view(chunk)
            except BaseException as error:
                failures.append(error)
                raise

        claim_runtime()
        client = self._client(self._policy.attempt_timeout_s, max_retries=_PART_RETRIES)
        try:
            with translated("put", uri):
                obstore.put(
                    client,
                    path,
                    watched(),
                    use_multipart=True,
                    chunk_size=part_bytes,
                    max_concurrency=_PARTS_IN_FLIGHT,
                )
        except Exception:
            if failures:  # the caller's own error, not the store's
                raise failures[0] from None
            raise

    def _retry(self, attempt: Callable[[Client], T], is_transient: Callable[[StorageError], bool] = is_transient) -> T:
        def timed(allowed_s: float) -> T:
            claim_runtime()
            try:
                client = self._client(allowed_s)
                return interruptible(lambda: attempt(client))
            except AccessDenied:
                self._clients.clear()  # so that renewed credentials are read
                raise

        return retry(self._policy, timed, is_transient=is_transient, repeating=self._count_retry)

    def _count_retry(self) -> None:
        self.retries += 1

    def _client(self, allowed_s: float, max_retries: int = 0) -> Client:
        """Return a client whose requests end in time: a timeout belongs to a client, not to a request."""
        timeout_s = self._policy.attempt_timeout_s
        while timeout_s > max(allowed_s, 0.05):
            timeout_s /= 2
        client = self._clients.get((timeout_s, max_retries))
        if client is None:
            client = self._clients[timeout_s, max_retries] = make_client(
                self._scheme,
                self._bucket,
                self._options,
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
        if etag is not None and not etag.endswith('"'):  # Azure's listings leave the quotes out
            etag = f'"{etag}"'
        key = meta["path"].removeprefix(self._folder)
        return ObjectInfo(key=key, size=meta["size"], etag=etag, modified_s=meta["last_modified"].timestamp())


def _reopen(scheme: str, bucket: str, prefix: str, options: dict[str, str], policy: RetryPolicy) -> ObjectStore:
    return ObjectStore(scheme, bucket, prefix, options=options, policy=policy)


_opened: WeakSet[ObjectStore] = WeakSet()


def _keep_clients() -> None:
    """Let no inherited client be dropped: it would wake threads that did not follow, under locks that they may hold."""
    for store in _opened if runtime_is_lost() else ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store._clients))
        store._clients = {}


os.register_at_fork(after_in_child=_keep_clients)
