"""From an address, options, the environment and files to a store."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidInputError
from penstock.storage import FolderStore, RetryPolicy, open_store
from penstock.storage._aws_profile import load_aws_profile
from tests.servers import Place, moto_port, new_place, s3_options


def test_every_kind_opens(store_uri: Place) -> None:
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
        place = new_place(kind)
        open_store(f"{place.uri}/inner/", options=place.options).put("k", b"x")
        assert bytes(place.open().get("inner/k")) == b"x"


def test_memory_is_private_without_a_name() -> None:
    first = open_store("memory://")
    first.put("k", b"x")
    assert list(open_store("memory://").list()) == []
    assert pickle.loads(pickle.dumps(first)).get("k") == b"x"


def test_memory_does_not_reach_another_process() -> None:
    script = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    data = pickle.dumps(open_store("memory://shared"))
    child = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True)
    assert b"memory://shared lives in the process that made it" in child.stderr


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
def test_wrong_addresses(address: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidInputError, match="nonsense"):
        open_store("s3://bucket", options={"nonsense": "1"})


def test_secrets_stay_out_of_sight() -> None:
    store = open_store("s3://bucket/x", options=s3_options("http://127.0.0.1:1") | {"secret_access_key": "hidden"})
    assert "hidden" not in f"{store!r} {store.uri}"


def test_policy_and_options_survive_pickling() -> None:
    place = new_place("s3")
    store = place.open(RetryPolicy(deadline_s=7))
    assert pickle.dumps(pickle.loads(pickle.dumps(store))) == pickle.dumps(store)


def test_environment_and_profile_reach_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = new_place("s3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{moto_port()}")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[lab]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    open_store(place.uri).put("k", b"x")
    monkeypatch.delenv("AWS_PROFILE")
    assert bytes(open_store(place.uri, options={"profile": "lab"}).get("k")) == b"x"


class TestAwsProfile:
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        self.home = tmp_path
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws/credentials").write_text(
            "[default]\naws_access_key_id=k0\naws_secret_access_key=s%0\n"
            "[lab]\naws_access_key_id=k1\naws_secret_access_key=s1\naws_session_token=t1\n"
        )
        (tmp_path / ".aws/config").write_text(
            "[default]\nregion=eu-west-1\n"
            "[profile lab]\nregion=eu-north-1\nendpoint_url=http://minio:9000\ns3 =\n    addressing_style = path\n"
            "[profile single]\nsso_session=corp\nregion=eu-west-3\n"
        )

    def load(
        self, profile: str | None = None, options: dict[str, str] | None = None, environ: dict[str, str] | None = None
    ) -> dict[str, str]:
        return load_aws_profile(profile, options=options or {}, environ=environ or {}, home=self.home)

    def test_default(self) -> None:
        expected = {"aws_access_key_id": "k0", "aws_secret_access_key": "s%0", "region": "eu-west-1"}
        assert self.load() == expected

    def test_named_by_the_environment_or_an_option(self) -> None:
        expected = {
            "aws_access_key_id": "k1",
            "aws_secret_access_key": "s1",
            "aws_session_token": "t1",
            "region": "eu-north-1",
            "endpoint": "http://minio:9000",
        }
        assert self.load(environ={"AWS_PROFILE": "lab"}) == expected
        assert self.load("lab", environ={"AWS_ACCESS_KEY_ID": "x"}) == expected

    def test_what_is_given_wins(self) -> None:
        assert self.load(environ={"AWS_ACCESS_KEY_ID": "x", "AWS_DEFAULT_REGION": "r"}) == {}
        assert self.load(options={"access_key_id": "x"}) == {"region": "eu-west-1"}
        assert self.load(options={"skip_signature": "true", "aws_region": "r"}) == {}

    def test_missing_or_keyless_profiles_say_what_to_do(self) -> None:
        with pytest.raises(InvalidInputError, match="no AWS profile 'gone'"):
            self.load(environ={"AWS_PROFILE": "gone"})
        with pytest.raises(InvalidInputError, match="export-credentials --profile single"):
            self.load(environ={"AWS_PROFILE": "single"})

    def test_no_files(self, tmp_path: Path) -> None:
        assert load_aws_profile(None, options={}, environ={}, home=tmp_path / "empty") == {}


def test_a_copy_forked_before_the_first_io_is_a_process_like_any_other() -> None:
    place = new_place("s3")
    script = f"""
import os
from penstock.storage import _sidecar, open_store
store = open_store({place.uri!r}, options={place.options!r})
if (child := os.fork()) == 0:
    store.put("k", b"x")
    assert bytes(store.get("k")) == b"x"
    os._exit(_sidecar._sidecar is not None)
assert os.waitpid(child, 0)[1] == 0
assert bytes(store.get("k")) == b"x"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
