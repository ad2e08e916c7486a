"""Links: values whose bytes are in external objects, in containers that the reader allows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from os.path import abspath
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote, unquote

from penstock.errors import CorruptError, InvalidInputError, LinkNotAllowedError, NotFoundError, SourceChangedError
from penstock.format import crc32c, new_id
from penstock.format.kinds import BadValueError, Link, LinkTarget, Values
from penstock.storage import Store, coalesce, local_path, open_store, thread_map
from penstock.table._blobs import RangeFile
from penstock.types import ByteRange

AllowedLinks: TypeAlias = bool | str | Iterable[str | PathLike[str]] | Mapping[str, Mapping[str, str] | None]
"""True for all, the URIs or folders of containers, or a mapping from them to their stores' options."""

_WORKERS = 16


@dataclass
class LinkContainers:
    """The stores of linked containers, opened on first use and only if allowed."""

    allowed: AllowedLinks = False
    """A bool, or (after `__post_init__`) a mapping from URI prefixes to store options."""
    declared: dict[str, str] = field(default_factory=dict)
    """Container name to URI, from the snapshot."""
    _stores: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.allowed, bool):
            return
        given = [self.allowed] if isinstance(self.allowed, str | PathLike) else self.allowed
        options = given if isinstance(given, Mapping) else {}
        self.allowed = {_plain_uri(uri): options.get(uri) for uri in given}

    def with_declared(self, declared: Mapping[str, str]) -> "LinkContainers":
        """The same permissions and open stores for the containers of another version."""
        return LinkContainers(self.allowed, dict(declared), self._stores)

    def store(self, name: str) -> Store:
        """The store of a container; raises `LinkNotAllowedError`."""
        if name not in self._stores:
            if name not in self.declared:
                raise CorruptError(f"a row links into container {name!r}, which its version does not declare")
            uri = self.declared[name]
            options = self._options(uri)
            if options is None:
                raise LinkNotAllowedError(
                    f"this table has links into {uri}, which this reader does not allow;"
                    f" open it with links=[{uri!r}], or links=True for all, or do not select the column"
                )
            self._stores[name] = open_store(uri, options=options)
        return self._stores[name]

    def _options(self, uri: str) -> Mapping[str, str] | None:
        """Store options of an allowed container; None if it is not allowed."""
        if isinstance(self.allowed, bool):
            return {} if self.allowed else None
        assert isinstance(self.allowed, Mapping)
        container = _plain_uri(uri)
        for prefix, options in self.allowed.items():
            if _is_inside(container, prefix):
                return options or {}
        return None

    def resolve(self, links: Sequence[Any] | Values, new: dict[str, str]) -> list[LinkTarget | None]:
        """Targets of a user's links; raises `BadValueError` for a link that does not resolve.

        Missing etags and lengths are read from the stores; new containers are added to `new`.
        """
        locations: list[tuple[str, str] | None] = []
        for index, link in enumerate(links):
            if link is None:
                locations.append(None)
                continue
            if not isinstance(link, Link):
                raise BadValueError(index, f"expected a penstock.Link, got {type(link).__name__}")
            try:
                container, path = split_uri(link.uri)
            except InvalidInputError as error:
                raise BadValueError(index, str(error)) from None
            parents = [(len(uri), name) for name, uri in self.declared.items() if _is_inside(container, uri)]
            if parents:
                length, name = max(parents)
                path = f"{unquote(container[length:].lstrip('/'))}/{path}" if length < len(container) else path
            else:
                name = new_id()[:16]
                self.declared[name] = new[name] = container
            locations.append((name, path))

        def target(index: int) -> LinkTarget | None:
            link, location = links[index], locations[index]
            if link is None or location is None:
                return None
            name, path = location
            etag, length = link.etag, link.length
            if etag is None or length is None:
                try:
                    info = self.store(name).head(path)
                except NotFoundError:
                    raise BadValueError(index, f"{link.uri} does not exist") from None
                except LinkNotAllowedError:
                    raise
                except InvalidInputError as error:
                    raise BadValueError(index, f"{link.uri} cannot be linked: {error}") from None
                etag = etag or info.etag
                length = info.size - link.offset if length is None else length
                if length < 0 or link.offset + length > info.size:
                    raise BadValueError(index, f"{link.uri} has only {info.size} bytes")
            return LinkTarget(name, path, link.offset, length, etag, link.crc32c)

        return thread_map(target, range(len(links)), max_workers=_WORKERS)

    def read(self, targets: Sequence[LinkTarget | None] | Values) -> list[bytes | None]:
        """The bytes of link targets; nearby ranges of one object are coalesced.

        Raises `SourceChangedError` if an object is missing or differs from what was linked.
        """
        objects: dict[tuple[str, str, str | None], list[int]] = {}
        for index, target in enumerate(targets):
            if target is not None:
                objects.setdefault((target.container, target.path, target.etag), []).append(index)
        requests = []
        for (container, path, etag), rows in objects.items():
            ranges = {row: _range(targets[row]) for row in rows}
            for request in coalesce(list(ranges.values()), max_gap_bytes=256 << 10, max_request_bytes=16 << 20):
                inside = [r for r in rows if ranges[r].start >= request.start and ranges[r].end <= request.end]
                requests.append((self.store(container), path, etag, request, inside))
        values: list[bytes | None] = [None if target is None else b"" for target in targets]

        def fetch(task: tuple[Store, str, str | None, ByteRange, list[int]]) -> None:
            store, path, etag, request, rows = task
            data = _read_range(store, path, request, etag)
            for row in rows:
                at = _range(targets[row])
                values[row] = value = bytes(data[at.start - request.start : at.end - request.start])
                _check_crc(store, cast(LinkTarget, targets[row]), crc32c(value))

        thread_map(fetch, requests, max_workers=_WORKERS)
        return values


class LinkReader(RangeFile):
    """A linked value as a file.

    If the link has a checksum, the read that completes the value from its beginning verifies it, and raises
    `SourceChangedError` if it does not match. Ranges that are read on their own cannot be verified; for these the etag
    detects a changed object.
    """

    def __init__(self, store: Store, target: LinkTarget) -> None:
        super().__init__(target.length)
        self._store, self._target = store, target
        self._crc, self._checked = crc32c(b""), 0
        """The checksum of the bytes before `_checked`, which were read without a gap."""
        if not target.length:
            _check_crc(store, target, self._crc)

    def _read(self, byte_range: ByteRange, out: memoryview) -> None:
        target = self._target
        source = ByteRange(target.offset + byte_range.start, target.offset + byte_range.end)
        data = _read_range(self._store, target.path, source, target.etag)
        if byte_range.start <= self._checked < byte_range.end:
            crc = crc32c(data[self._checked - byte_range.start :], self._crc)
            if byte_range.end == target.length:
                _check_crc(self._store, target, crc)
            self._crc, self._checked = crc, byte_range.end
        out[: byte_range.length] = data


def _read_range(store: Store, path: str, byte_range: ByteRange, etag: str | None) -> memoryview:
    try:
        return store.get(path, byte_range=byte_range, etag=etag)
    except (NotFoundError, CorruptError) as error:
        raise SourceChangedError(
            f"the linked object {store.uri}/{path} is missing or shorter than when it was linked;"
            " restore it, or link it again"
        ) from error


def _check_crc(store: Store, target: LinkTarget, crc: int) -> None:
    """Raise `SourceChangedError` unless a link has no checksum or this one."""
    if target.crc32c is not None and target.crc32c != crc:
        at = _range(target)
        raise SourceChangedError(
            f"the linked bytes {at.start} to {at.end} of {store.uri}/{target.path} have changed;"
            " restore them, or link them again"
        )


def split_uri(uri: str) -> tuple[str, str]:
    """A URI's container (a bucket, or the folder of a file) and the path inside it."""
    if (file := _path(uri)) is not None:
        return _file_uri(file.parent), file.name
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path


def _is_inside(uri: str, container: str) -> bool:
    return uri == container or uri.startswith(container.rstrip("/") + "/")


def _plain_uri(uri: str | PathLike[str]) -> str:
    """A container's URI in the one way in which two that mean the same are equal."""
    text = fspath(uri)
    path = _path(text)
    return text.rstrip("/") if path is None else _file_uri(path)


def _file_uri(path: Path) -> str:
    return f"file://{quote(path.as_posix())}"


def _path(uri: str) -> Path | None:
    """The absolute path of a file URI or a path, without `..` in it; None for any other URI."""
    path = local_path(uri)
    return None if path is None else Path(abspath(path))


def _range(target: Any) -> ByteRange:
    return ByteRange(target.offset, target.offset + target.length)
