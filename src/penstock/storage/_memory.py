"""A store in this process's memory, for tests and scratch work."""

import itertools
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from penstock.errors import InvalidInputError
from penstock.storage import _errors
from penstock.storage._keys import check_key, object_uri
from penstock.storage._store import ObjectInfo, Store
from penstock.types import Buffer, ByteRange


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    modified_s: float


class _Namespace:
    """The objects that stores of one name share."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.objects: dict[str, _Object] = {}
        self.etags = itertools.count()
        self.lock = threading.Lock()


_named: dict[str, _Namespace] = {}
_namespaces: WeakValueDictionary[str, _Namespace] = WeakValueDictionary()
_lock = threading.Lock()


def open_memory(name: str, prefix: str) -> "MemoryStore":
    """Open the process's namespace of that name, or a private one if the name is empty."""
    with _lock:
        namespace = _named.setdefault(name, _Namespace()) if name else _Namespace()
        _namespaces[namespace.token] = namespace
    return MemoryStore(f"memory://{name}" + (f"/{prefix}" if prefix else ""), prefix, namespace)


def _reopen(uri: str, prefix: str, token: str) -> "MemoryStore":
    with _lock:
        namespace = _namespaces.get(token)
    if namespace is None:
        raise InvalidInputError(
            f"{uri} exists only in the process that created it; share a folder or a bucket between processes"
        )
    return MemoryStore(uri, prefix, namespace)


def open_portable(uri: str, objects: Mapping[str, bytes]) -> "MemoryStore":
    """Open a memory store with these objects, which a pickled copy carries along."""
    store = _PortableStore(uri, "", _Namespace())
    for key, data in objects.items():
        store.put(key, data)
    return store


class MemoryStore(Store):
    """Objects in memory: private for `memory://`, shared within the process for `memory://name`."""

    is_local = is_process_local = True

    def __init__(self, uri: str, prefix: str, namespace: _Namespace) -> None:
        self.uri = uri
        self._prefix = prefix
        self._folder = f"{prefix}/" if prefix else ""
        self._namespace = namespace

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.uri, self._prefix, self._namespace.token)

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Return a view of the stored bytes."""
        found = self._find(key)
        if etag is not None and etag != found.etag:
            raise _errors.source_changed(object_uri(self.uri, key), etag)
        if byte_range is None:
            return memoryview(found.data)
        _errors.check_bounds(object_uri(self.uri, key), byte_range, len(found.data))
        return memoryview(found.data)[byte_range.start : byte_range.end]

    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata."""
        return _info(key, self._find(key))

    def put(self, key: str, data: Buffer) -> None:
        """Store a copy of the bytes."""
        check_key(key)
        new = self._new(data)
        with self._namespace.lock:
            self._namespace.objects[self._folder + key] = new

    def create(self, key: str, data: Buffer) -> None:
        """Store a copy of the bytes if the key does not exist."""
        check_key(key)
        new = self._new(data)
        with self._namespace.lock:
            created = self._namespace.objects.setdefault(self._folder + key, new) is new
        if not created:
            raise _errors.already_exists(object_uri(self.uri, key))

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Join the chunks into one object."""
        self.put(key, b"".join(chunks))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List a snapshot of the keys."""
        start, skip = self._folder + prefix, len(self._folder)
        with self._namespace.lock:
            found = [(key, value) for key, value in self._namespace.objects.items() if key.startswith(start)]
        yield from (_info(key[skip:], value) for key, value in sorted(found, key=lambda item: item[0]))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects."""
        for key in keys:
            check_key(key)
        with self._namespace.lock:
            for key in keys:
                self._namespace.objects.pop(self._folder + key, None)

    def holds(self, key: str) -> bool:
        """Whether there is an object."""
        return self._folder + key in self._namespace.objects

    def objects(self) -> dict[str, bytes]:
        """All objects by key."""
        with self._namespace.lock:
            found = list(self._namespace.objects.items())
        skip = len(self._folder)
        return {key[skip:]: value.data for key, value in found if key.startswith(self._folder)}

    def _find(self, key: str) -> _Object:
        check_key(key)
        found = self._namespace.objects.get(self._folder + key)
        if found is None:
            raise _errors.not_found(object_uri(self.uri, key))
        return found

    def _new(self, data: Buffer) -> _Object:
        return _Object(bytes(data), f'"{next(self._namespace.etags)}"', time.time())


class _PortableStore(MemoryStore):
    """Objects in memory that travel with the store: each process has a copy, and sees its own writes only."""

    is_process_local = False

    def __reduce__(self) -> tuple[object, ...]:
        return open_portable, (self.uri, self.objects())


def _info(key: str, value: _Object) -> ObjectInfo:
    return ObjectInfo(key=key, size=len(value.data), etag=value.etag, modified_s=value.modified_s)
