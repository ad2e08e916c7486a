"""The vendor of each store, and what it says where it cannot issue credentials for one table."""

from typing import Any

import pytest

import penstock
from penstock.catalog.vending import Vendor, make_vendor
from penstock.errors import InvalidInputError
from penstock.storage import open_store
from tests.catalog.vending.vendors import azure_vendor, s3_vendor
from tests.servers import new_location

KEYS = {"access_key_id": "key", "secret_access_key": "secret", "endpoint": "http://127.0.0.1:9", "region": "eu-west-1"}
ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


def vendor(storage: str, options: dict[str, str] | None = None, **changes: Any) -> Vendor:
    arguments: dict[str, Any] = {"role_arn": None, "lifetime_s": 900, "allow_shared": False}
    return make_vendor(storage, options=options or {}, **(arguments | changes))


@pytest.mark.parametrize(
    ("storage", "options", "missing"),
    [
        ("s3://lake", KEYS, "--role-arn"),
        ("az://lake", {"account_name": "a"}, "account_key"),
        ("gs://lake", {"service_account_key": '{"disable_oauth": true}'}, "disable_oauth"),
        ("memory://lake", {}, "no access control"),
    ],
)
def test_what_cannot_be_narrowed_says_what_is_missing(storage: str, options: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidInputError, match=f"(?s){missing}.*--allow-shared-credentials"):
        vendor(storage, options)


@pytest.mark.parametrize("kind", ["s3", "gs", "memory"])
def test_shared_credentials_open_a_table_and_are_not_called_narrow(kind: str) -> None:
    place = new_location(kind)
    shared = vendor(place.uri, place.options, allow_shared=True)
    assert not shared.narrow
    uri = shared.new_location()
    credentials = shared.vend(uri, "read")
    assert credentials.lifetime_s is None
    penstock.create(uri, {"x": int}, storage_options=credentials.options)
    shared.remove(uri)
    assert list(open_store(uri, options=shared.server_options).list()) == []


def test_tables_with_many_objects_are_removed_whole() -> None:
    shared = vendor(new_location("memory").uri, allow_shared=True)
    uri, other = shared.new_location(), shared.new_location()
    store = open_store(uri)
    for number in range(2500):
        store.put(f"data/{number}", b"")
    open_store(other).put("key", b"value")
    shared.remove(uri)
    assert list(store.list()) == []
    assert [info.key for info in open_store(other).list()] == ["key"]


def test_a_role_is_used_even_if_credentials_may_be_shared() -> None:
    assert s3_vendor(allow_shared=True).narrow
    assert azure_vendor(allow_shared=True).narrow


@pytest.mark.parametrize("options", [{}, {"region": "eu-west-1"}, {"profile": "lake"}])
def test_only_credentials_among_the_options_are_shared(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the server")
    with pytest.raises(InvalidInputError, match="not handed out"):
        vendor("s3://lake", options, allow_shared=True)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.catalog.vending import _make

    monkeypatch.setattr(_make, "find_spec", lambda _: None)
    with pytest.raises(InvalidInputError, match=r"penstock\[server\]"):
        vendor("s3://lake", KEYS, role_arn=ROLE, allow_shared=True)
    with pytest.raises(InvalidInputError, match=r"penstock\[azure\].*--allow-shared-credentials"):
        vendor("az://lake", {"account_name": "a", "account_key": "AAAA"})
    with pytest.raises(InvalidInputError, match=r"penstock\[gcs\].*--allow-shared-credentials"):
        vendor("gs://lake")


@pytest.mark.parametrize(
    ("storage", "changes", "message"),
    [
        ("ftp://lake", {}, "use a folder, s3, gs or az"),
        ("/data", {"lifetime_s": 0}, "positive lifetime"),
        ("s3://lake", {"role_arn": "lake"}, "not the ARN of a role"),
        ("s3://lake", {"role_arn": ROLE, "options": {"profile": "nowhere"}}, "nowhere"),
        ("s3://lake", {"role_arn": ROLE, "locations": ["gs://archive"]}, "cannot hold"),
        ("az://lake/teams", {"options": {"account_name": "a", "account_key": "AAAA"}}, "--hierarchical"),
        ("az://lake", {"options": {"account_key": "AAAA"}}, "account_name"),
        ("gs://lake", {"options": {"service_account_key": "{"}}, "cannot be read"),
        ("gs://lake", {"options": {"service_account_key": '{"type": "service_account"}'}}, "missing fields"),
    ],
)
def test_wrong_arguments_are_refused_at_the_start(storage: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vendor(storage, **changes)
