"""Profiles of the AWS tools."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.storage import RetryPolicy, Store, _aws_credentials, open_store
from penstock.storage._aws_credentials import AwsProfile, load_aws_profile
from penstock.storage._obstore_errors import translated_botocore
from tests.servers import moto_port, new_location

POLICY = RetryPolicy(deadline_s=20, attempt_timeout_s=10, initial_backoff_s=0.01, max_backoff_s=0.05)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with AWS files, and an environment without AWS settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    endpoint = f"http://127.0.0.1:{moto_port()}"
    process = tmp_path / "credentials.py"
    credentials = {"Version": 1, "AccessKeyId": "process", "SecretAccessKey": "s", "SessionToken": "t"}
    process.write_text(f"import sys\nif len(sys.argv) > 1: sys.exit('refused')\nprint({json.dumps(credentials)!r})\n")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[default]\naws_access_key_id=k0\naws_secret_access_key=s%0\n"
        "[lab]\naws_access_key_id=k1\naws_secret_access_key=s1\naws_session_token=t1\n"
    )
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion=eu-west-1\n"
        f"[profile lab]\nregion=eu-north-1\nendpoint_url={endpoint}\ns3 =\n    addressing_style = path\n"
        f"[profile role]\nrole_arn=arn:aws:iam::123456789012:role/reader\nsource_profile=lab\nregion=us-east-1\n"
        f"endpoint_url={endpoint}\n"
        f"[profile process]\ncredential_process={sys.executable} {process}\nendpoint_url={endpoint}\n"
        f"[profile refused]\ncredential_process={sys.executable} {process} fail\nendpoint_url={endpoint}\n"
        "[profile sso]\nsso_session=corp\nsso_account_id=123456789012\nsso_role_name=reader\nregion=eu-west-3\n"
        f"endpoint_url={endpoint}\n"
        "[sso-session corp]\nsso_start_url=https://corp.example/start\nsso_region=us-east-1\n"
        "[profile services]\nservices=local\nregion=eu-west-3\n[services local]\ns3 =\n    endpoint_url = http://minio:9000\n"
        "[profile region]\nregion=eu-west-3\n"
    )
    return tmp_path


def open_profile(profile: str) -> Store:
    return open_store(new_location("s3").uri, options={"profile": profile}, retry=POLICY)


def access_key(profile: AwsProfile) -> str:
    assert profile.credentials is not None
    return profile.credentials()["access_key_id"]


@pytest.mark.parametrize(("profile", "key"), [("lab", "k1"), ("role", None), ("process", "process")])
def test_profile_reads_and_writes(profile: str, key: str | None) -> None:
    store = open_profile(profile)
    store.put("k", b"x")
    assert bytes(pickle.loads(pickle.dumps(store)).get("k")) == b"x"
    found = access_key(load_aws_profile(profile, {}))
    assert found == key if key else found.startswith("ASIA")  # temporary credentials of STS


def test_profile_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "role")
    store = open_store(new_location("s3").uri, retry=POLICY)
    store.put("k", b"x")
    script = "import pickle, sys; assert bytes(pickle.load(sys.stdin.buffer).get('k')) == b'x'"
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(store), check=True, timeout=60)


def test_default_profile() -> None:
    profile = load_aws_profile(None, {})
    assert (profile.config, access_key(profile)) == ({"region": "eu-west-1"}, "k0")


def test_region_and_endpoint_of_a_profile() -> None:
    endpoint = f"http://127.0.0.1:{moto_port()}"
    assert load_aws_profile("lab", {}).config == {"region": "eu-north-1", "endpoint": endpoint}
    assert load_aws_profile("services", {}).config == {"region": "eu-west-3", "endpoint": "http://minio:9000"}
    assert load_aws_profile("region", {}) == AwsProfile({"region": "eu-west-3"})


def test_profile_option_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "z")
    profile = load_aws_profile("lab", {})
    assert (profile.config["region"], access_key(profile)) == ("eu-north-1", "k1")
    assert load_aws_profile(None, {}) == AwsProfile({})


def test_explicit_options_take_precedence_over_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_aws_profile(None, {"access_key_id": "x"}) == AwsProfile({"region": "eu-west-1"})
    assert load_aws_profile(None, {"skip_signature": "true", "aws_region": "r"}) == AwsProfile({})
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert load_aws_profile(None, {}).credentials is None


def test_no_files_need_no_boto3(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "empty"))
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert load_aws_profile(None, {}) == AwsProfile({})


def test_missing_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match=r"AWS profile 'gone' cannot be used.*correct the `profile` option"):
        open_profile("gone")
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(InvalidInputError, match="AWS profile 'gone'"):
        open_store("s3://bucket")


def test_missing_boto3(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for profile in ("lab", None):
        with pytest.raises(InvalidInputError, match=r"pip install 'penstock\[aws\]'"):
            load_aws_profile(profile, {})
    assert load_aws_profile(None, {"access_key_id": "x"}) == AwsProfile({})
    (home / ".aws/credentials").unlink()
    assert load_aws_profile(None, {}) == AwsProfile({})  # a default profile without credentials


def test_expired_sso_login() -> None:
    with pytest.raises(AccessDeniedError, match=r"cannot read s3://bucket/.*run `aws sso login --profile sso`"):
        open_profile("sso").get("k")


def test_failing_credential_process() -> None:
    with pytest.raises(AccessDeniedError, match=r"AWS profile 'refused' has no valid credentials.*refused"):
        open_profile("refused").get("k")


def test_unreachable_sts_is_a_storage_error(home: Path) -> None:
    config = home / ".aws/config"
    config.write_text(config.read_text().replace(str(moto_port()), "1"))
    store = open_store("s3://bucket", options={"profile": "role"}, retry=RetryPolicy(deadline_s=1, attempt_timeout_s=1))
    with pytest.raises(StorageError, match="credentials of AWS profile 'role' cannot be fetched"):
        store.get("k")


def test_credentials_are_renewed_before_they_expire() -> None:
    from botocore.credentials import RefreshableCredentials

    assert _aws_credentials._TTL.total_seconds() < RefreshableCredentials._mandatory_refresh_timeout


def test_no_credentials_is_access_denied() -> None:
    with pytest.raises(AccessDeniedError, match="no credentials were found"), translated_botocore("lab"):
        raise ValueError("Received None from session.get_credentials")
