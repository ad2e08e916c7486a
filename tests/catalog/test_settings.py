"""Where the server and the key come from."""

import os
import re
from pathlib import Path

import pytest

from penstock.catalog import Catalog, Login, RemoteCatalog, find_settings, open_catalog, remove_login, write_login
from penstock.catalog._api_key import new_key
from penstock.errors import AccessDeniedError, InvalidInputError

KEY, OTHER = new_key().text, new_key().text
URL = "https://lake.example"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_ALLOW_HTTP", raising=False)
    return tmp_path


def test_nothing_is_configured() -> None:
    assert find_settings() is None
    assert find_settings(workspace="team") is None
    assert isinstance(open_catalog(), Catalog)


def test_arguments_then_environment_then_login(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    write_login(Login(URL, KEY, "stored"))
    found = find_settings()
    assert found is not None
    assert (found.url, found.key, found.workspace) == (URL, KEY, "stored")
    assert str(home / "login.json") in found.key_source
    assert isinstance(open_catalog(), RemoteCatalog)
    monkeypatch.setenv("PENSTOCK_API_KEY", OTHER)
    found = find_settings()
    assert found is not None  # the workspace of the login is that of its key
    assert (found.url, found.key, found.workspace, found.key_source) == (URL, OTHER, None, "PENSTOCK_API_KEY")
    monkeypatch.setenv("PENSTOCK_API_URL", "https://other.example/")
    monkeypatch.setenv("PENSTOCK_WORKSPACE", "team")
    found = find_settings()
    assert found is not None
    assert (found.url, found.workspace, found.url_source) == ("https://other.example", "team", "PENSTOCK_API_URL")
    found = find_settings(api_key=KEY, workspace="mine", api_url=URL)
    assert found is not None
    assert (found.url, found.key, found.workspace) == (URL, KEY, "mine")
    assert KEY not in repr(found)


def test_a_stored_key_is_sent_to_its_own_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(Login(URL, KEY, "stored"))
    monkeypatch.setenv("PENSTOCK_API_URL", "https://other.example")
    with pytest.raises(AccessDeniedError, match=r"PENSTOCK_API_URL names the server https://other.example, and there"):
        find_settings()


def test_a_key_alone_means_this_machine() -> None:
    found = find_settings(api_key=KEY)
    assert found is not None
    assert found.url == "http://127.0.0.1:7117"


@pytest.mark.parametrize("url", ["http://lake.example", "http://10.0.0.7:7117", "http://127.0.0.1.example"])
def test_a_key_is_not_sent_unencrypted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match=r"not encrypted.*PENSTOCK_ALLOW_HTTP=1"):
        find_settings(api_key=KEY, api_url=url)
    monkeypatch.setenv("PENSTOCK_ALLOW_HTTP", "1")
    assert find_settings(api_key=KEY, api_url=url) is not None


@pytest.mark.parametrize(
    "url", ["http://localhost:1", "http://127.0.0.9", "http://[::1]:7117", "https://lake.example/x"]
)
def test_addresses_that_are_accepted(url: str) -> None:
    assert find_settings(api_key=KEY, api_url=url) is not None


@pytest.mark.parametrize(
    "url",
    ["lake.example", "ftp://lake.example", "https://", "https://me:secret1@lake", "https://l:x", "https://l?secret1"],
)
def test_addresses_that_name_no_server(url: str) -> None:
    with pytest.raises(InvalidInputError, match="the argument api_url does not name a server") as error:
        find_settings(api_key=KEY, api_url=url)
    assert "secret1" not in str(error.value)


def test_a_mistyped_key_is_found_without_a_request() -> None:
    for wrong in (KEY[:-1], KEY[:30] + ("a" if KEY[30] != "a" else "b") + KEY[31:], "hunter22"):
        with pytest.raises(InvalidInputError, match=r"the argument api_key: .* copy") as error:
            find_settings(api_key=wrong)
        assert wrong not in str(error.value)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_login_is_private(home: Path) -> None:
    path = write_login(Login(URL, KEY, "stored"))
    assert path.stat().st_mode & 0o777 == 0o600
    write_login(Login(URL, OTHER, "stored"))
    assert [each.name for each in home.iterdir()] == ["login.json"]
    path.chmod(0o640)
    with pytest.raises(AccessDeniedError, match=r"other users may read it; run `chmod 600`"):
        find_settings()
    assert find_settings(api_key=KEY, api_url=URL) is not None  # it is not needed
    assert remove_login() == path
    assert remove_login() is None
    assert find_settings() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', "\xff"])
def test_a_damaged_login_is_reported(home: Path, text: str) -> None:
    write_login(Login(URL, KEY, "stored")).write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInputError, match=re.escape(f"{home / 'login.json'} is damaged")):
        find_settings()
