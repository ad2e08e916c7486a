"""Wrappers of stores: fault injection, hooks, and counters."""

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
    """A fault injected into calls of one verb whose key matches.

    - `fail_before`: raise without executing the call;
    - `fail_after`: execute the call, then raise, as if the response was lost;
    - `overwrite`: a `create` overwrites an existing object and reports success;
    - `delay`: sleep, then execute the call.
    """

    kind: Literal["fail_before", "fail_after", "overwrite", "delay"]
    verb: Verb
    key: str = "*"
    """Shell pattern of the key (of a listing: the prefix; of a deletion: any of the keys)."""
    skip: int = 0
    """Matching calls that succeed first."""
    times: int = 1
    """Matching calls that fail after those."""
    error: type[PenstockError] = StorageError
    """The error raised."""
    delay_s: float = 0.0
    """Seconds that a `delay` sleeps."""


@dataclass(frozen=True, slots=True)
class _Call:
    verb: Verb
    keys: Sequence[str]
    sent_bytes: int = 0


class _Wrapper(Store):
    """Forwards every call to another store through `_call`; what it counts or causes stays in this process."""

    is_process_local = True

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uri = store.uri
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _call(self, call: _Call, execute: Callable[[], T]) -> T:
        raise NotImplementedError

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Forward."""
        return self._call(_Call("get", [key]), lambda: self.store.get(key, byte_range=byte_range, etag=etag))

    def head(self, key: str) -> ObjectInfo:
        """Forward."""
        return self._call(_Call("head", [key]), lambda: self.store.head(key))

    def put(self, key: str, data: Buffer) -> None:
        """Forward."""
        self._call(_Call("put", [key], memoryview(data).nbytes), lambda: self.store.put(key, data))

    def create(self, key: str, data: Buffer) -> None:
        """Forward."""
        self._call(_Call("create", [key], memoryview(data).nbytes), lambda: self.store.create(key, data))

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Forward."""
        self._call(_Call("put_stream", [key]), lambda: self.store.put_stream(key, chunks))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Forward."""
        return self._call(_Call("list", [prefix]), lambda: self.store.list(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Forward."""
        self._call(_Call("delete", keys), lambda: self.store.delete(keys))


class FaultyStore(_Wrapper):
    """A store that injects scripted faults; `fired` counts how often each was injected."""

    def __init__(self, store: Store, *faults: Fault) -> None:
        super().__init__(store)
        self.faults = faults
        self.fired: Counter[Fault] = Counter()
        self._seen: Counter[Fault] = Counter()

    def create(self, key: str, data: Buffer) -> None:
        """Forward, or overwrite."""
        if self._next(_Call("create", [key]), overwrites=True):
            self.store.put(key, data)
        else:
            super().create(key, data)

    def _call(self, call: _Call, execute: Callable[[], T]) -> T:
        fault = self._next(call, overwrites=False)
        if fault is None:
            return execute()
        if fault.kind == "delay":
            time.sleep(fault.delay_s)
            return execute()
        if fault.kind == "fail_after":
            execute()
        raise fault.error(f"{fault.kind} of {call.verb} {', '.join(call.keys)} in {self.uri}: injected by a test")

    def _next(self, call: _Call, *, overwrites: bool) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                matches = fault.verb == call.verb and any(fnmatchcase(key, fault.key) for key in call.keys)
                if not matches or (fault.kind == "overwrite") != overwrites:
                    continue
                self._seen[fault] += 1
                if fault.skip < self._seen[fault] <= fault.skip + fault.times:
                    self.fired[fault] += 1
                    return fault
        return None


class HookedStore(_Wrapper):
    """A store that calls `hook(verb, keys)` before each call; what the hook raises, the call raises."""

    def __init__(self, store: Store, hook: Callable[[Verb, Sequence[str]], None]) -> None:
        super().__init__(store)
        self.hook = hook

    def _call(self, call: _Call, execute: Callable[[], T]) -> T:
        self.hook(call.verb, call.keys)
        return execute()


class CountingStore(_Wrapper):
    """A store that counts calls (`requests`) and transferred bytes (`bytes`) by verb."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def reset(self) -> None:
        """Reset all counters."""
        with self._lock:
            self.requests.clear()
            self.bytes.clear()

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Forward, counting the chunks."""

        def counted() -> Iterator[Buffer]:
            for chunk in chunks:
                self._count("put_stream", 0, memoryview(chunk).nbytes)
                yield chunk

        super().put_stream(key, counted())

    def _call(self, call: _Call, execute: Callable[[], T]) -> T:
        self._count(call.verb, 1, call.sent_bytes)
        result = execute()
        if isinstance(result, memoryview):
            self._count(call.verb, 0, result.nbytes)
        return result

    def _count(self, verb: Verb, requests: int, size: int) -> None:
        with self._lock:
            self.requests[verb] += requests
            self.bytes[verb] += size
