"""Stores around stores: one breaks on purpose, one counts."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from penstock.errors import PenstockError, StorageError
from penstock.storage import ObjectInfo, Store
from penstock.types import Buffer, ByteRange

T = TypeVar("T")
Verb = Literal["get", "head", "put", "create", "put_stream", "list", "delete"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break, for the calls of one verb whose key matches.

    - `fail_before`: raise, and do nothing;
    - `fail_after`: do it, then raise: the answer was lost;
    - `lie`: a `create` overwrites what is there and reports success;
    - `delay`: wait, then do it.
    """

    kind: Literal["fail_before", "fail_after", "lie", "delay"]
    verb: Verb
    key: str = "*"
    """Shell pattern of the key (of a listing: the prefix; of a deletion: any of the keys)."""
    skip: int = 0
    """Matching calls that go well first."""
    times: int = 1
    """Matching calls that break after those."""
    error: type[PenstockError] = StorageError
    """What is raised."""
    delay_s: float = 0.0
    """How long a `delay` lasts."""


@dataclass(frozen=True, slots=True)
class _Call:
    verb: Verb
    keys: Sequence[str]
    sent_bytes: int = 0


class _Wrapper(Store):
    """Passes every verb to another store through `_call`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uri = store.uri
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _call(self, call: _Call, do: Callable[[], T]) -> T:
        raise NotImplementedError

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read."""
        return self._call(_Call("get", [key]), lambda: self.store.get(key, byte_range=byte_range, etag=etag))

    def head(self, key: str) -> ObjectInfo:
        """Describe."""
        return self._call(_Call("head", [key]), lambda: self.store.head(key))

    def put(self, key: str, data: Buffer) -> None:
        """Write."""
        self._call(_Call("put", [key], memoryview(data).nbytes), lambda: self.store.put(key, data))

    def create(self, key: str, data: Buffer) -> None:
        """Write if free."""
        self._call(_Call("create", [key], memoryview(data).nbytes), lambda: self.store.create(key, data))

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write from chunks."""
        self._call(_Call("put_stream", [key]), lambda: self.store.put_stream(key, chunks))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk."""
        return self._call(_Call("list", [prefix]), lambda: self.store.list(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove."""
        self._call(_Call("delete", keys), lambda: self.store.delete(keys))


class FaultyStore(_Wrapper):
    """A store that breaks as its script says; `fired` counts how often each fault did."""

    def __init__(self, store: Store, *faults: Fault) -> None:
        super().__init__(store)
        self.faults = faults
        self.fired: Counter[Fault] = Counter()
        self._seen: Counter[Fault] = Counter()

    def create(self, key: str, data: Buffer) -> None:
        """Write if free, or lie about it."""
        if self._next(_Call("create", [key]), lies=True):
            self.store.put(key, data)
        else:
            super().create(key, data)

    def _call(self, call: _Call, do: Callable[[], T]) -> T:
        fault = self._next(call, lies=False)
        if fault is None:
            return do()
        if fault.kind == "delay":
            time.sleep(fault.delay_s)
            return do()
        if fault.kind == "fail_after":
            do()
        raise fault.error(f"{fault.kind} of {call.verb} {', '.join(call.keys)} in {self.uri}: injected by a test")

    def _next(self, call: _Call, *, lies: bool) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                matches = fault.verb == call.verb and any(fnmatchcase(key, fault.key) for key in call.keys)
                if not matches or (fault.kind == "lie") != lies:
                    continue
                self._seen[fault] += 1
                if fault.skip < self._seen[fault] <= fault.skip + fault.times:
                    self.fired[fault] += 1
                    return fault
        return None


class CountingStore(_Wrapper):
    """A store that counts, by verb, the calls made (`requests`) and the bytes moved (`bytes`)."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def reset(self) -> None:
        """Begin again at zero."""
        with self._lock:
            self.requests.clear()
            self.bytes.clear()

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write from chunks, counting them as they pass."""

        def counted() -> Iterator[Buffer]:
            for chunk in chunks:
                self._count("put_stream", 0, memoryview(chunk).nbytes)
                yield chunk

        super().put_stream(key, counted())

    def _call(self, call: _Call, do: Callable[[], T]) -> T:
        self._count(call.verb, 1, call.sent_bytes)
        result = do()
        if isinstance(result, memoryview):
            self._count(call.verb, 0, result.nbytes)
        return result

    def _count(self, verb: Verb, requests: int, size: int) -> None:
        with self._lock:
            self.requests[verb] += requests
            self.bytes[verb] += size
