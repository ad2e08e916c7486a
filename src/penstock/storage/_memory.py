"""A store in this process's memory, for tests and scratch work."""

import itertools
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from penstock.errors import InvalidInputError
from penstock.storage import _outcomes
from penstock.storage._inputs import check_key, object_uri
from penstock.storage._store import ObjectInfo, Store
from penstock.types import Buffer, ByteRange


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    modified_s: float


class _Space:
    """What the stores of one name share."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.objects: dict[str, _Object] = {}
        self.etags = itertools.count()
        self.lock = threading.Lock()


_named: dict[str, _Space] = {}
_spaces: WeakValueDictionary[str, _Space] = WeakValueDictionary()
_lock = threading.Lock()


def open_memory(name: str, prefix: str) -> "MemoryStore":
    """Open the process's space of that name, or a private one if the name is empty."""
    with _lock:
        space = _named.setdefault(name, _Space()) if name else _Space()
        _spaces[space.token] = space
    return MemoryStore(f"memory://{name}" + (f"/{prefix}" if prefix else ""), prefix, space)


def _reopen(uri: str, prefix: str, token: str) -> "MemoryStore":
    with _lock:
        space = _spaces.get(token)
    if space is None:
        raise InvalidInputError(f"{uri} lives in the process that made it; use a folder or a bucket between processes")
    return MemoryStore(uri, prefix, space)


class MemoryStore(Store):
    """Objects in memory: private for `memory://`, shared within the process for `memory://name`."""

    fan_out = 1
    straight = True

    def __init__(self, uri: str, prefix: str, space: _Space) -> None:
        self.uri = uri
        self._prefix = prefix
        self._folder = f"{prefix}/" if prefix else ""
        self._space = space

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.uri, self._prefix, self._space.token)

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Return a view of the stored bytes."""
        found = self._find(key)
        if etag is not None and etag != found.etag:
            raise _outcomes.source_changed(object_uri(self.uri, key), etag)
        if byte_range is None:
            return memoryview(found.data)
        _outcomes.check_bounds(object_uri(self.uri, key), byte_range, len(found.data))
        return memoryview(found.data)[byte_range.start : byte_range.end]

    def head(self, key: str) -> ObjectInfo:
        """Describe an object."""
        return _info(key, self._find(key))

    def put(self, key: str, data: Buffer) -> None:
        """Copy the bytes in."""
        check_key(key)
        new = self._new(data)
        with self._space.lock:
            self._space.objects[self._folder + key] = new

    def create(self, key: str, data: Buffer) -> None:
        """Copy the bytes in if the key is free."""
        check_key(key)
        new = self._new(data)
        with self._space.lock:
            won = self._space.objects.setdefault(self._folder + key, new) is new
        if not won:
            raise _outcomes.already_exists(object_uri(self.uri, key))

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Join the chunks into one object."""
        self.put(key, b"".join(chunks))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the keys as they are now."""
        start, skip = self._folder + prefix, len(self._folder)
        with self._space.lock:
            found = [(key, value) for key, value in self._space.objects.items() if key.startswith(start)]
        yield from (_info(key[skip:], value) for key, value in sorted(found, key=lambda item: item[0]))

    def delete(self, keys: Sequence[str]) -> None:
        """Forget the objects."""
        for key in keys:
            check_key(key)
        with self._space.lock:
            for key in keys:
                self._space.objects.pop(self._folder + key, None)

    def _find(self, key: str) -> _Object:
        check_key(key)
        found = self._space.objects.get(self._folder + key)
        if found is None:
            raise _outcomes.not_found(object_uri(self.uri, key))
        return found

    def _new(self, data: Buffer) -> _Object:
        return _Object(bytes(data), f'"{next(self._space.etags)}"', time.time())


def _info(key: str, value: _Object) -> ObjectInfo:
    return ObjectInfo(key=key, size=len(value.data), etag=value.etag, modified_s=value.modified_s)
