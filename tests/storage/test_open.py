"""Open stores from addresses, options and the environment."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidInputError
from penstock.storage import FolderStore, RetryPolicy, open_store
from tests.servers import StoreLocation, new_location, s3_options


def test_every_kind_opens(store_uri: StoreLocation) -> None:
    store = store_uri.open()
    assert store.uri == store_uri.uri
    store.put("k", b"x")
    assert bytes(store_uri.open().get("k")) == b"x"


def test_paths_and_file_uris_are_folders(tmp_path: Path) -> None:
    for address in (tmp_path, str(tmp_path), tmp_path.as_uri(), f"{tmp_path}/x/../"):
        store = open_store(address)
        assert isinstance(store, FolderStore)
        assert store.uri == str(tmp_path)


def test_prefixes_nest() -> None:
    for kind in ("memory", "s3"):
        location = new_location(kind)
        open_store(f"{location.uri}/inner/", options=location.options).put("k", b"x")
        assert bytes(location.open().get("inner/k")) == b"x"


def test_unnamed_memory_store_is_private() -> None:
    first = open_store("memory://")
    first.put("k", b"x")
    assert list(open_store("memory://").list()) == []
    assert pickle.loads(pickle.dumps(first)).get("k") == b"x"


def test_memory_store_cannot_be_unpickled_in_another_process() -> None:
    script = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    data = pickle.dumps(open_store("memory://shared"))
    child = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True)
    assert b"memory://shared exists only in the process that created it" in child.stderr


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "no address"),
        ("ftp://host/x", "use a path, file, memory, s3, gs or az"),
        ("s3://", "bucket"),
        ("s3://key:secret@bucket/x", "credentials go into options"),
        ("s3://bucket/../x", "not a key"),
        ("file://host/x", "file:///path"),
    ],
)
def test_invalid_addresses(address: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_unknown_option_is_named_in_the_error() -> None:
    with pytest.raises(InvalidInputError, match="nonsense"):
        open_store("s3://bucket", options={"nonsense": "1"})


def test_secrets_are_not_in_repr_or_uri() -> None:
    store = open_store("s3://bucket/x", options=s3_options("http://127.0.0.1:1") | {"secret_access_key": "hidden"})
    assert "hidden" not in f"{store!r} {store.uri}"


def test_policy_and_options_survive_pickling() -> None:
    location = new_location("s3")
    store = location.open(RetryPolicy(deadline_s=7))
    assert pickle.dumps(pickle.loads(pickle.dumps(store))) == pickle.dumps(store)


def test_child_forked_before_the_first_io_uses_obstore_itself() -> None:
    location = new_location("s3")
    script = f"""
import os
from penstock.storage import _sidecar, open_store
store = open_store({location.uri!r}, options={location.options!r})
if (child := os.fork()) == 0:
    store.put("k", b"x")
    assert bytes(store.get("k")) == b"x"
    os._exit(_sidecar._sidecar is not None)
assert os.waitpid(child, 0)[1] == 0
assert bytes(store.get("k")) == b"x"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)
