"""A store with objects in memory on top of another one."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.storage import ObjectInfo, OverlayStore, Prefetch, Store, open_portable, open_store
from penstock.testing import StoreTests
from penstock.types import ByteRange
from tests.servers import new_location


class TestWritesBelow(StoreTests):
    def new_store(self) -> Store:
        return OverlayStore(new_location("folder").open(), ["held/"])


class TestWritesInMemory(StoreTests):
    def new_store(self) -> Store:
        return OverlayStore(new_location("memory").open(), [""])

    def test_pickles(self) -> None:
        store = self.new_store()
        store.put("k", b"1")
        copy = pickle.loads(pickle.dumps(store))
        store.put("k", b"2")
        assert copy.get("k") == b"1", "a copy has the objects of its own moment"


@pytest.fixture
def store(tmp_path: Path) -> OverlayStore:
    base = open_store(tmp_path)
    base.put("data/a", b"below a")
    base.put("data/b", b"below b")
    overlay = OverlayStore(base, ["data/"])
    overlay.put("data/b", b"memory b")
    overlay.put("data/c", b"memory c")
    overlay.put("log/1", b"below 1")
    return overlay


def test_memory_shadows_the_store_below_and_is_not_written_to_it(store: OverlayStore, tmp_path: Path) -> None:
    assert {item.key: bytes(store.get(item.key)) for item in store.list("data/")} == {
        "data/a": b"below a",
        "data/b": b"memory b",
        "data/c": b"memory c",
    }
    assert [item.size for item in store.list()] == [7, 8, 8, 7]
    base = open_store(tmp_path)
    assert [item.key for item in base.list()] == ["data/a", "data/b", "log/1"]
    assert bytes(base.get("data/b")) == b"below b"


def test_every_read_finds_both(store: OverlayStore) -> None:
    assert [bytes(part) for part in store.get_parts("data/c", [ByteRange(0, 2), ByteRange(7, 8)])] == [b"me", b"c"]
    objects = [*store.list(), ObjectInfo("data/none", 1, None, 0.0)]
    found = list(store.get_many(objects, Prefetch(2)))
    assert [bytes(part) for part in found[:-1] if isinstance(part, memoryview)] == [
        b"below a",
        b"memory b",
        b"memory c",
        b"below 1",
    ]
    assert isinstance(found[-1], NotFoundError)
    buffers = [bytearray(3) for _ in range(3)]
    keys = ("data/a", "data/c", "log/1")
    store.read_scattered([(key, 2, memoryview(buffer)) for key, buffer in zip(keys, buffers, strict=True)])
    assert buffers == [b"low", b"mor", b"low"]
    with pytest.raises(AlreadyExistsError):
        store.create("data/a", b"")


def test_a_delete_below_a_held_prefix_leaves_the_store_below_alone(store: OverlayStore, tmp_path: Path) -> None:
    store.delete(["data/a", "data/b", "log/1"])
    assert [item.key for item in store.list()] == ["data/a", "data/b", "data/c"]
    assert bytes(store.get("data/b")) == b"below b"
    assert [item.key for item in open_store(tmp_path).list()] == ["data/a", "data/b"]


def test_overlays_of_overlays_have_one_level(store: OverlayStore) -> None:
    upper = OverlayStore(store, ["log/"])
    upper.put("data/d", b"memory d")
    upper.put("log/2", b"memory 2")
    assert bytes(upper.get("data/b")) == b"memory b"
    assert upper.held_bytes == 32
    assert store.held_bytes == 16
    with pytest.raises(NotFoundError):
        store.get("data/d")


def test_another_process_gets_the_objects_along(store: OverlayStore) -> None:
    code = (
        "import pickle, sys\n"
        "for store in pickle.load(sys.stdin.buffer): print(bytes(store.get('data/b')), store.is_process_local)\n"
    )
    portable = open_portable("result", {"data/b": b"alone"})
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps([store, portable]), capture_output=True)
    assert done.stdout.decode().splitlines() == ["b'memory b' False", "b'alone' False"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_works_in_a_forked_process(store: OverlayStore) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0 if bytes(store.get("data/b")) + bytes(store.get("data/a")) == b"memory bbelow a" else 1)
    assert os.waitpid(pid, 0)[1] == 0
