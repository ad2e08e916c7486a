"""What a server cannot do to the machine and the credentials of a client, whatever it answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog import RemoteCatalog, ServerSettings, TableCredentials
from penstock.catalog.vending import make_vendor
from penstock.dataset._locations import open_entry
from penstock.errors import AccessDeniedError, InvalidInputError, NotFoundError, StorageError
from penstock.storage import RetryPolicy
from tests.catalog.test_remote import ADDRESS, DESCRIBED, KEY, Script, catalog, ok, serving, settings
from tests.servers import new_location

RETRY = RetryPolicy(deadline_s=30, attempt_timeout_s=30)
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "hidden"}


def answer(location: str, options: Any) -> Any:
    return ok({**DESCRIBED, "location": location, "storage_options": options})


@pytest.fixture
def store() -> Iterator[Script]:
    """A store that the server names; it must not see credentials of the user."""
    with serving((404, {}, b"")) as script:
        yield script


@pytest.mark.parametrize(
    "name",
    [
        "proxy_url", "allow_invalid_certificates", "aws_web_identity_token_file", "aws_endpoint_url_sts", "profile",
        "aws_container_credentials_full_uri", "aws_container_authorization_token_file", "azure_federated_token_file",
        "azure_authority_host", "google_service_account", "google_application_credentials", "AWS_PROXY_URL",
        "aws_metadata_endpoint", "aws_aws_endpoint", "azure_storage_client_secret",
    ],
)  # fmt: skip
def test_an_option_that_is_not_for_a_server_to_choose_is_refused(name: str) -> None:
    with serving(answer("s3://lake/4f", {**KEYS, name: "chosen"})) as script:
        issuer = TableCredentials(settings(script), ADDRESS, "s3://lake/4f", None)
        for ask in (lambda: catalog(script).find(ADDRESS), issuer.issue):
            with pytest.raises(AccessDeniedError, match=f"'{name}'.*not trusted") as found:
                ask()
            assert "chosen" not in str(found.value)


@pytest.mark.parametrize(
    ("location", "setting"),
    [("s3://lake/4f", "aws_endpoint"), ("gs://lake/4f", "google_base_url"), ("az://lake/4f", "azure_storage_endpoint")],
)
def test_credentials_of_the_user_do_not_go_where_a_server_says(
    location: str, setting: str, store: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_BEARER_TOKEN"):
        monkeypatch.setenv(name, "user")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dXNlcg==")
    place = {setting: store.url} | ({"account_name": "a"} if location.startswith("az") else {})
    with serving(answer(location, place)) as script:
        entry = catalog(script).find(ADDRESS)
        with pytest.raises(AccessDeniedError, match=r"issues none for it.*storage_options"):
            open_entry(entry, None, retry=RETRY).head("x")
    assert store.requests == []
    with serving(answer(location, place | {"skip_signature": "true"})) as script:
        public = open_entry(catalog(script).find(ADDRESS), None, retry=RETRY)
        with pytest.raises(NotFoundError):
            public.get("x")
    [(_, path, headers, _)] = store.requests
    assert "user" not in path + str(headers).lower().replace("user-agent", "")
    assert "authorization" not in {name.lower() for name in headers}


@pytest.mark.parametrize("kind", ["s3", "az", "gs"])
def test_shared_credentials_of_a_server_work_and_are_not_shown(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = new_location(kind)
    for name in ("AWS_SESSION_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_SAS_TOKEN", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.setenv(name, "true")
    # the server of this machine has settings of its own, which it keeps
    given = {**place.options, "connect_timeout": "5s"}
    if kind == "az":  # a vendor would narrow them
        options = {f"azure_storage_{name}": value for name, value in place.options.items()}
    else:
        vendor = make_vendor(place.uri, options=given, role_arn=None, lifetime_s=60, allow_shared=True)
        options = dict(vendor.vend(vendor.new_location(), "write").options)
    with serving(answer(place.uri, options)) as script:
        entry = catalog(script).find(ADDRESS)
        opened = open_entry(entry, None, retry=RETRY)
        opened.put("a", b"data")
        assert bytes(opened.get("a")) == b"data"
    for name, value in place.options.items():
        if name.endswith("_key"):
            assert repr(value) not in repr(entry)
            assert value not in entry.storage_options.values()


def test_a_shared_service_account_is_content_and_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        serving(answer("gs://lake/4f", {"service_account_key": str(tmp_path)})) as script,
        pytest.raises(AccessDeniedError, match="not a JSON object"),
    ):
        open_entry(catalog(script).find(ADDRESS), None)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "user")  # obstore would prefer it
    with (
        serving(answer("gs://lake/4f", new_location("gs").options)) as script,
        pytest.raises(InvalidInputError, match="unset GOOGLE_BEARER_TOKEN"),
    ):
        open_entry(catalog(script).find(ADDRESS), None)


@pytest.mark.parametrize("location", ["/tables/4f", "file:///tables/4f", "tables"])
def test_a_server_elsewhere_names_no_folder_unless_the_user_allows_it(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_HTTP", "1")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(answer(location, {})) as script:
        monkeypatch.setenv("http_proxy", script.url)
        elsewhere = RemoteCatalog(ServerSettings("http://lake.example", KEY))
        for ask in (elsewhere.find, elsewhere.reserve):
            with pytest.raises(AccessDeniedError, match="PENSTOCK_ALLOW_FOLDERS=1"):
                ask(ADDRESS)
        assert elsewhere.drop(ADDRESS).uri == location  # opens nothing
        assert catalog(script).find(ADDRESS).uri == location
        monkeypatch.setenv("PENSTOCK_ALLOW_FOLDERS", "1")
        assert elsewhere.find(ADDRESS).uri == location


def test_a_list_ends() -> None:
    row = {"name": "a", "location": "/x", "created_at_millis": 1}
    with (
        serving(ok({"details": [row], "page_token": "a"})) as script,
        pytest.raises(StorageError, match="repeats a page"),
    ):
        catalog(script).tables("team")
    with serving(ok({"details": [row], "page_token": "a"}), ok({"details": [], "page_token": "b"})) as script:
        assert [entry.address.table for entry in catalog(script).tables("team")] == ["a"]
        assert len(script.requests) == 2


@pytest.mark.parametrize(
    "document",
    [b'{"a":' * 200_000, json.dumps({**DESCRIBED, "storage_options": {"token": "t", "expires_at_millis": "9" * 4000}}),
     json.dumps({**DESCRIBED, "storage_options": {"aws_region": {}}})],
    ids=["nested", "huge", "no text"],
)  # fmt: skip
def test_a_strange_document_is_a_storage_error(document: bytes | str) -> None:
    data = document.encode() if isinstance(document, str) else document
    with serving((200, {}, data)) as script, pytest.raises(StorageError, match=r"not a Penstock server|understand"):
        catalog(script).find(ADDRESS)
