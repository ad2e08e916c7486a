"""Conformance suite of the `Store` contract: subclass `StoreTests` and implement `new_store`."""

import pickle
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import AlreadyExistsError, CorruptError, InvalidInputError, NotFoundError, SourceChangedError
from penstock.storage import Prefetch, Store, get_ranges, probe, thread_map
from penstock.types import Buffer, ByteRange

_UNUSUAL_KEYS = (
    "plain",
    "a/b/c.json",
    "a b",
    "a+b",
    "a%20b",
    "a%2Fb",
    "q?x=1&y",
    "#h",
    "~x*'(),;!",
    "a:b=c@d$",
    "[x]{y}^`|<z>",
    "ü/é",
    "日本/語",
    "🙂",
    ".hidden",
    "...",
    "00000000000000000001.json",
    "x" * 200,
)
_INVALID_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\\b",
    "a\nb",
    "a\0b",
    ".tmp-1",
    "\ud800",
)
_PAGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=12)


class StoreTests(ABC):
    """Tests that every store must pass; see the contract in `penstock.storage.Store`."""

    big_bytes = 70 << 20
    """Size of an object that needs a multipart upload."""

    list_objects = 60
    """Number of objects in a long listing; real services return 1,000 per page."""

    @abstractmethod
    def new_store(self) -> Store:
        """Open a new, empty store."""

    def test_returns_what_was_put(self) -> None:
        store = self.new_store()
        for data in (b"", b"x", bytes(range(256)) * 5, bytearray(b"ab"), memoryview(b"0123456789")[2:5]):
            store.put("k", data)
            assert store.get("k") == data
            assert store.head("k").size == len(data)

    def test_put_accepts_any_buffer(self) -> None:
        store = self.new_store()
        store.put("k", memoryview(b"01234567").cast("I"))
        store.create("c", memoryview(b"01234567").cast("H"))
        store.put_stream("s", [memoryview(b"01234567").cast("Q")])
        assert {bytes(store.get(key)) for key in "kcs"} == {b"01234567"}
        store.put("empty", np.empty((0, 3), np.float32).data)
        assert store.head("empty").size == 0

    def test_missing_object(self) -> None:
        store = self.new_store()
        store.put("a/b", b"x")
        for key in ("nope", "a", "a/b/c", "a/bb"):
            with pytest.raises(NotFoundError, match=key):
                store.get(key)
            with pytest.raises(NotFoundError, match=key):
                store.get(key, byte_range=ByteRange(0, 1))
            with pytest.raises(NotFoundError, match=key):
                store.get(key, byte_range=ByteRange(0, 0))
            with pytest.raises(NotFoundError, match=key):
                store.head(key)

    @pytest.mark.parametrize("prefetch", [Prefetch(1, 1), Prefetch(3, 1000), Prefetch(8, 1 << 20)])
    def test_get_many_yields_objects_in_order(self, prefetch: Prefetch) -> None:
        store = self.new_store()
        bodies = {f"{index:02}": bytes([index]) * (index**4) for index in range(24)}
        for key, body in bodies.items():
            store.put(key, body)
        listed = list(store.list())
        store.put("05", b"not what was listed")
        store.delete(["07"])
        results = dict(zip(bodies, store.get_many(listed, prefetch), strict=True))
        changed, missing = results.pop("05"), results.pop("07")
        assert isinstance(missing, NotFoundError)
        assert isinstance(changed, SourceChangedError)
        assert {key: bytes(data) for key, data in results.items()} == {key: bodies[key] for key in results}  # type: ignore[arg-type]
        partial = store.get_many(listed, prefetch)
        assert bytes(next(partial)) == b""  # type: ignore[arg-type]
        assert bytes(next(partial)) == b"\x01"  # type: ignore[arg-type]
        del partial  # a consumer may stop early

    @pytest.mark.parametrize("key", _UNUSUAL_KEYS)
    def test_unusual_keys(self, key: str) -> None:
        store = self.new_store()
        store.put(key, b"1")
        store.put(f"folder/{key}", b"2")
        assert (bytes(store.get(key)), bytes(store.get(f"folder/{key}"))) == (b"1", b"2")
        assert [info.key for info in store.list()] == sorted([key, f"folder/{key}"])
        assert [info.key for info in store.list(f"folder/{key}")] == [f"folder/{key}"]
        with pytest.raises(AlreadyExistsError):
            store.create(key, b"3")
        store.delete([key])
        assert [info.key for info in store.list()] == [f"folder/{key}"]

    @pytest.mark.parametrize("key", _INVALID_KEYS)
    def test_invalid_keys_are_refused(self, key: str) -> None:
        store = self.new_store()
        for call in (store.get, store.head, lambda key: store.delete([key])):
            with pytest.raises(InvalidInputError):
                call(key)
        for write in (store.put, store.create, lambda key, data: store.put_stream(key, [data])):
            with pytest.raises(InvalidInputError):
                write(key, b"")
        assert list(store.list()) == []

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(pages=_PAGES)
    def test_ranges_are_slices(self, pages: list[tuple[int, int]]) -> None:
        store, data = self._store_with_data()
        ranges = [ByteRange(start, start + length) for start, length in pages]
        assert get_ranges(store, "k", ranges) == [data[item.start : item.end] for item in ranges]
        for item in ranges[:3]:
            assert store.get("k", byte_range=item) == data[item.start : item.end]

    def test_read_scattered(self) -> None:
        store, data = self._store_with_data()
        store.put("other", data[::-1])
        reads = [("k", 7, 5), ("other", 0, 1), ("k", 0, len(data)), ("other", 339, 1), ("k", 3, 0)]
        buffers = [memoryview(bytearray(length)) for _, _, length in reads]
        store.read_scattered([(key, start, buffer) for (key, start, _), buffer in zip(reads, buffers, strict=True)])
        objects = {"k": data, "other": data[::-1]}
        assert buffers == [objects[key][start : start + length] for key, start, length in reads]
        with pytest.raises(CorruptError, match=rf"{len(data)} bytes.*\[338, 343\)"):
            store.read_scattered([("k", 338, memoryview(bytearray(5)))])
        with pytest.raises(NotFoundError):
            store.read_scattered([("absent", 0, memoryview(bytearray(1)))])

    @pytest.mark.parametrize("lengths", [(0,), (1_000_000,), (0, 5, 0, 700_000, 1), (3,) * 2000])
    def test_read_into_fills_consecutive_buffers(self, lengths: Sequence[int]) -> None:
        store, data = self.new_store(), bytes(range(251)) * 5000
        store.put("k", data)
        buffers = [memoryview(bytearray(length)) for length in lengths]
        store.read_into("k", 1234, buffers)
        assert b"".join(buffers) == data[1234 : 1234 + sum(lengths)]
        with pytest.raises(CorruptError, match=rf"{len(data)} bytes"):
            store.read_into("k", len(data) - 5, [memoryview(bytearray(100_000))])
        with pytest.raises(NotFoundError):
            store.read_into("absent", 0, [memoryview(bytearray(100_000))])

    @pytest.mark.parametrize(("start", "end"), [(0, 341), (339, 341), (340, 341), (341, 342), (900, 1000), (341, 341)])
    def test_range_past_the_end_is_corrupt(self, start: int, end: int) -> None:
        store, data = self._store_with_data()
        with pytest.raises(CorruptError, match=rf"{len(data)} bytes.*\[{start}, {end}\)"):
            store.get("k", byte_range=ByteRange(start, end))
        store.put("empty", b"")
        with pytest.raises(CorruptError):
            store.get("empty", byte_range=ByteRange(0, 1))

    def test_etag(self) -> None:
        store = self.new_store()
        store.put("k", b"first")
        etag = store.head("k").etag
        assert etag is not None
        assert [info.etag for info in store.list()] == [etag]
        assert bytes(store.get("k", etag=etag)) == b"first"
        assert bytes(store.get("k", etag=etag, byte_range=ByteRange(1, 3))) == b"ir"
        assert bytes(store.get("k", etag=etag, byte_range=ByteRange(1, 1))) == b""
        store.put("k", b"second")
        for byte_range in (None, ByteRange(1, 3), ByteRange(1, 1)):
            with pytest.raises(SourceChangedError, match="k no longer has etag"):
                store.get("k", etag=etag, byte_range=byte_range)
        with pytest.raises(NotFoundError):
            store.get("other", etag=etag)

    def test_modification_times_are_recent(self) -> None:
        store = self.new_store()
        store.put("k", b"")
        assert abs(store.head("k").modified_s - time.time()) < 60
        assert list(store.list()) == [store.head("k")]

    def test_create_does_not_overwrite(self) -> None:
        store = self.new_store()
        store.create("k", b"first")
        with pytest.raises(AlreadyExistsError, match="k"):
            store.create("k", b"second")
        assert bytes(store.get("k")) == b"first"
        store.delete(["k"])
        store.create("k", b"third")
        assert bytes(store.get("k")) == b"third"

    def test_one_of_racing_creates_succeeds(self) -> None:
        found = probe(self.new_store(), racers=8, rounds=3)
        assert found.create_only, found.detail
        assert found.list_after_write, found.detail
        assert found.ranged_reads, found.detail

    def test_probe_removes_its_objects(self) -> None:
        store = self.new_store()
        probe(store)
        assert list(store.list()) == []

    def test_readers_see_whole_objects(self) -> None:
        store = self.new_store()
        versions = [bytes([index]) * (1000 + index) for index in range(8)]
        store.put("k", versions[0])
        done = threading.Event()

        def read(_: int) -> None:
            while not done.is_set():
                assert bytes(store.get("k")) in versions

        def write(_: int) -> None:
            try:
                for version in versions:
                    store.put("k", version)
            finally:
                done.set()

        thread_map(lambda index: (write if index == 0 else read)(index), range(3), max_workers=3)

    def test_list_by_any_prefix_in_order(self) -> None:
        store = self.new_store()
        keys = ["a-b/x", "a/b", "a/b-c", "a/b.d/e", "ab", "b/0", "b/1", "b/10", "b/2", "ba", "é", "日"]
        thread_map(lambda key: store.put(key, key.encode()), random.Random(0).sample(keys, len(keys)), max_workers=4)
        for prefix in (
            "",
            "a",
            "a/",
            "a/b",
            "a/b.",
            "a/b.d",
            "a/b.d/",
            "a-",
            "b",
            "b/",
            "b/1",
            "c",
            "a/x/",
            "b/10/",
            "é",
        ):
            assert [info.key for info in store.list(prefix)] == sorted(key for key in keys if key.startswith(prefix))
        assert all(info.size == len(info.key.encode()) for info in store.list())

    def test_long_listing(self) -> None:
        store = self.new_store()
        keys = [f"log/{number:04}" for number in range(self.list_objects)]
        thread_map(lambda key: store.put(key, b""), keys, max_workers=4)
        assert [info.key for info in store.list("log/")] == keys

    def test_put_stream(self) -> None:
        store = self.new_store()
        streams: list[list[Buffer]] = [[], [b""], [b"one"], [b"a", b"", b"bc", memoryview(b"def")[1:]]]
        for chunks in streams:
            store.put_stream("k", iter(chunks))
            assert bytes(store.get("k")) == b"".join(chunks)

    def test_multipart_upload(self) -> None:
        store = self.new_store()
        chunk = random.Random(1).randbytes(1 << 20)
        count, rest = divmod(self.big_bytes, len(chunk))
        chunks = [chunk] * count + [chunk[:rest]]
        store.put_stream("streamed", iter(chunks))
        self._check_big(store, "streamed", chunk)
        store.put("put", b"".join(chunks))
        self._check_big(store, "put", chunk)

    def test_failed_stream_writes_nothing(self) -> None:
        store = self.new_store()
        store.put("old", b"old")

        def chunks() -> Iterator[bytes]:
            for _ in range(20):
                yield bytes(1 << 20)
            raise FileNotFoundError("the source")

        for key in ("new", "old"):
            with pytest.raises(FileNotFoundError, match="the source"):
                store.put_stream(key, chunks())
        assert [info.key for info in store.list()] == ["old"]
        assert bytes(store.get("old")) == b"old"

    def test_delete(self) -> None:
        store = self.new_store()
        keys = [f"f/{number}" for number in range(12)]
        for key in keys[::2]:
            store.put(key, b"")
        store.delete([])
        store.delete(["missing"])
        store.delete(["missing/below"])
        store.delete(keys[:-2])
        assert [info.key for info in store.list()] == ["f/10"]
        store.delete(keys)
        assert list(store.list()) == []

    def test_pickles(self) -> None:
        store = self.new_store()
        copy = pickle.loads(pickle.dumps(store))
        assert copy.uri == store.uri
        store.put("k", b"x")
        assert bytes(copy.get("k")) == b"x"

    def test_bytes_outlive_the_object(self) -> None:
        store = self.new_store()
        store.put("k", b"first")
        view = store.get("k")
        store.put("k", b"other")
        store.delete(["k"])
        assert bytes(view) == b"first"
        assert view.readonly

    def _store_with_data(self) -> tuple[Store, bytes]:
        store = self.__dict__.get("_range_store")
        data = bytes(random.Random(2).randbytes(340))
        if store is None:
            store = self.__dict__["_range_store"] = self.new_store()
            store.put("k", data)
        return store, data

    def _check_big(self, store: Store, key: str, chunk: bytes) -> None:
        assert store.head(key).size == self.big_bytes
        last = self.big_bytes - len(chunk) // 2
        for start in (0, len(chunk) - 7, (16 << 20) - 7, last):
            end = min(start + 14, self.big_bytes)
            expected = bytes(chunk[at % len(chunk)] for at in range(start, end))
            assert store.get(key, byte_range=ByteRange(start, end)) == expected
