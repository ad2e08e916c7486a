"""Links: values whose bytes are in other objects, in containers that the reader has allowed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from os.path import abspath
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from penstock.errors import CorruptError, InvalidInputError, LinkNotAllowed, NotFoundError, SourceChanged
from penstock.format import crc32c, new_id
from penstock.format.kinds import BadValue, Link, Place, Values
from penstock.storage import Store, coalesce, open_store, run_all
from penstock.types import ByteRange

AllowedLinks: TypeAlias = bool | str | Iterable[str | PathLike[str]] | Mapping[str, Mapping[str, str] | None]
"""True for all, the URIs or folders of containers, or a mapping from them to the options their stores need."""

_WORKERS = 16


@dataclass
class Containers:
    """The stores behind links: opened when first needed, and only where allowed."""

    allowed: AllowedLinks = False
    """Kept as a bool, or as a mapping from the beginnings of URIs to options."""
    declared: dict[str, str] = field(default_factory=dict)
    """Name to URI, as the snapshot has it."""
    _stores: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.allowed, bool):
            return
        given = [self.allowed] if isinstance(self.allowed, str | PathLike) else self.allowed
        options = given if isinstance(given, Mapping) else {}
        self.allowed = {_plain_uri(uri): options.get(uri) for uri in given}

    def at(self, declared: Mapping[str, str]) -> "Containers":
        """The same permissions and stores for another version, which has containers of its own."""
        return Containers(self.allowed, dict(declared), self._stores)

    def store(self, name: str) -> Store:
        """The store of a container."""
        if name not in self._stores:
            uri = self.declared[name]
            options = self._options(uri)
            if options is None:
                raise LinkNotAllowed(
                    f"this table has links into {uri}, which this reader has not allowed;"
                    f" open it with links=[{uri!r}], or links=True for all, or do not select the column"
                )
            self._stores[name] = open_store(uri, options=options)
        return self._stores[name]

    def _options(self, uri: str) -> Mapping[str, str] | None:
        """The options of an allowed container; None for one that is not."""
        if isinstance(self.allowed, bool):
            return {} if self.allowed else None
        assert isinstance(self.allowed, Mapping)
        asked = _plain_uri(uri)
        for prefix, options in self.allowed.items():
            if _is_in(asked, prefix):
                return options or {}
        return None

    def resolve(self, links: Sequence[Any] | Values, new: dict[str, str]) -> list[Place | None]:
        """Places for what a user gave, etag and length asked of the stores; containers not seen before go to `new`."""
        split: list[tuple[str, str] | None] = []
        for index, link in enumerate(links):
            if link is None:
                split.append(None)
                continue
            if not isinstance(link, Link):
                raise BadValue(index, f"expected a penstock.Link, got {type(link).__name__}")
            try:
                container, path = split_uri(link.uri)
            except InvalidInputError as error:
                raise BadValue(index, str(error)) from None
            above = [(len(uri), name) for name, uri in self.declared.items() if _is_in(container, uri)]
            if above:
                length, name = max(above)
                path = f"{unquote(container[length:].lstrip('/'))}/{path}" if length < len(container) else path
            else:
                name = new_id()[:16]
                self.declared[name] = new[name] = container
            split.append((name, path))

        def place(index: int) -> Place | None:
            link, found = links[index], split[index]
            if link is None or found is None:
                return None
            name, path = found
            etag, length = link.etag, link.length
            if etag is None or length is None:
                try:
                    info = self.store(name).head(path)
                except NotFoundError:
                    raise BadValue(index, f"{link.uri} does not exist") from None
                except LinkNotAllowed:
                    raise
                except InvalidInputError as error:
                    raise BadValue(index, f"{link.uri} cannot be linked: {error}") from None
                etag = etag or info.etag
                length = info.size - link.offset if length is None else length
                if length < 0 or link.offset + length > info.size:
                    raise BadValue(index, f"{link.uri} has only {info.size} bytes")
            return Place(name, path, link.offset, length, etag, link.crc32c)

        return run_all(place, range(len(links)), max_workers=_WORKERS)

    def read(self, places: Sequence[Place | None] | Values) -> list[bytes | None]:
        """The bytes behind places; parts of one object are read together."""
        objects: dict[tuple[str, str, str | None], list[int]] = {}
        for index, place in enumerate(places):
            if place is not None:
                objects.setdefault((place.container, place.path, place.etag), []).append(index)
        requests = []
        for (container, path, etag), rows in objects.items():
            ranges = {row: _range(places[row]) for row in rows}
            for request in coalesce(list(ranges.values()), max_gap_bytes=256 << 10, max_request_bytes=16 << 20):
                inside = [r for r in rows if ranges[r].start >= request.start and ranges[r].end <= request.end]
                requests.append((self.store(container), path, etag, request, inside))
        values: list[bytes | None] = [None if place is None else b"" for place in places]

        def fetch(asked: tuple[Store, str, str | None, ByteRange, list[int]]) -> None:
            store, path, etag, request, rows = asked
            try:
                data = store.get(path, byte_range=request, etag=etag)
            except (NotFoundError, CorruptError) as error:
                raise SourceChanged(
                    f"the linked object {store.uri}/{path} is gone or shorter than it was when it was linked"
                ) from error
            for row in rows:
                at = _range(places[row])
                values[row] = value = bytes(data[at.start - request.start : at.end - request.start])
                known = _there(places[row]).crc32c
                if known is not None and crc32c(value) != known:
                    raise SourceChanged(f"the linked bytes {at.start} to {at.end} of {store.uri}/{path} have changed")

        run_all(fetch, requests, max_workers=_WORKERS)
        return values


def split_uri(uri: str) -> tuple[str, str]:
    """A URI's container (a bucket, or the folder of a file) and the path inside it."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        file = _path(uri)
        return _file_uri(file.parent), file.name
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path


def _is_in(uri: str, container: str) -> bool:
    return uri == container or uri.startswith(container.rstrip("/") + "/")


def _plain_uri(uri: str | PathLike[str]) -> str:
    """A container's URI in the one way in which two that mean the same are equal."""
    text = fspath(uri)
    if text.startswith("file://") or "://" not in text:
        return _file_uri(_path(text))
    return text.rstrip("/")


def _file_uri(path: Path) -> str:
    return f"file://{quote(path.as_posix())}"


def _path(uri: str) -> Path:
    """The path that a file URI or a path means, without `..` in it."""
    _, separator, rest = uri.partition("://")
    if separator and not rest.startswith("/"):
        raise InvalidInputError(f"{uri} names a host; write file:///path, or the path alone")
    if not uri:
        raise InvalidInputError("an empty path leads nowhere")
    return Path(abspath(unquote(rest) if separator else uri))


def _there(place: Place | None) -> Place:
    assert place is not None
    return place


def _range(place: Any) -> ByteRange:
    return ByteRange(place.offset, place.offset + place.length)
