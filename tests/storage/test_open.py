"""Open stores from addresses, options and the environment."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidInputError, StorageError
from penstock.storage import FolderStore, RetryPolicy, open_store
from penstock.storage._obstore_errors import translated
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


@pytest.mark.parametrize("bucket", ["a b", "a?b", "a#b", "a%0d%0a", "a\r\nX-Other: 1", "user:secret@a", "\u00e9"])
def test_a_bucket_cannot_change_the_meaning_of_a_url(bucket: str) -> None:
    with pytest.raises(InvalidInputError, match="must be followed by a bucket's name alone") as raised:
        open_store(f"s3://{bucket}/t")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "localhost", "http://", "http://a b", "ftp://host", "//host"])
@pytest.mark.parametrize("where", ["options", "environment"])
def test_an_endpoint_that_is_no_url_is_named(endpoint: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint if where == "environment" else "")
    options = {"endpoint": endpoint} if where == "options" else {}
    with pytest.raises(InvalidInputError, match=r"(?i)endpoint\w* is '.*'; write a URL with its scheme, such as http"):
        open_store("s3://bucket/t", options=options)


def test_a_panic_of_obstore_is_a_storage_error() -> None:
    class PanicException(BaseException):
        """What pyo3 raises."""

    panicked = r"cannot read s3://b/k: obstore panicked: unwrap on None"
    with pytest.raises(StorageError, match=panicked), translated("read", "s3://b/k"):
        raise PanicException("unwrap on None")
    with pytest.raises(KeyboardInterrupt), translated("read", "s3://b/k"):
        raise KeyboardInterrupt


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
