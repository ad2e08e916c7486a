"""Where the server of a catalog is, and with which key to talk to it."""

import ipaddress
import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from penstock.catalog._api_key import parse_key
from penstock.catalog._locations import catalog_folder
from penstock.errors import AccessDeniedError, InvalidInputError

DEFAULT_URL = "http://127.0.0.1:7117"
DEFAULT_WORKSPACE = "default"
GET_A_KEY = "an admin of the workspace runs `penstock keys create`, you set PENSTOCK_API_KEY or run `penstock login`"


@dataclass(frozen=True)
class ServerSettings:
    """A server and a key; each with the name of the setting it comes from, for messages."""

    url: str
    key: str = field(repr=False)
    workspace: str | None = None
    """The workspace of tables that are named without one; None for that of the key."""
    url_source: str = "the argument api_url"
    key_source: str = "the argument api_key"

    def __post_init__(self) -> None:
        _check_url(self.url, self.url_source)
        try:
            parse_key(self.key)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self.key_source}: {error}") from None


@dataclass(frozen=True)
class Login:
    """What `penstock login` stores."""

    url: str
    key: str = field(repr=False)
    workspace: str


def find_settings(
    *, api_key: str | None = None, workspace: str | None = None, api_url: str | None = None
) -> ServerSettings | None:
    """The server to use: by arguments, else by `PENSTOCK_API_KEY`, `PENSTOCK_WORKSPACE` and `PENSTOCK_API_URL`, else by
    `penstock login`; None if none of them names a key or a URL, and the embedded catalog applies.

    A key that `penstock login` stored is sent to the server of that login only. Raises `AccessDeniedError` if there is
    a URL and no key for it.
    """
    key, key_source = _first((api_key, "the argument api_key"), "PENSTOCK_API_KEY")
    url, url_source = _first((api_url, "the argument api_url"), "PENSTOCK_API_URL")
    url = url and url.rstrip("/")
    name = workspace or os.environ.get("PENSTOCK_WORKSPACE")
    login = read_login() if key is None or url is None else None
    if login is not None and url is None:
        url, url_source = login.url, _login_source()
    if login is not None and key is None and url == login.url:
        key, key_source, name = login.key, _login_source(), name or login.workspace
    if key is None and url is None:
        return None
    if key is None:
        raise AccessDeniedError(f"{url_source} names the server {url}, and there is no API key for it: {GET_A_KEY}")
    if url is None:
        url, url_source = find_url()
    return ServerSettings(url, key, name or None, url_source, key_source)


def find_url(api_url: str | None = None) -> tuple[str, str]:
    """The URL of the server to log in to, and the setting it comes from."""
    url, source = _first((api_url, "--url"), "PENSTOCK_API_URL")
    return (url.rstrip("/"), source) if url else (DEFAULT_URL, "the default, because PENSTOCK_API_URL is not set")


def default_workspace(workspace: str | None = None) -> str:
    """The workspace of tables that are named without one, in the embedded catalog."""
    return workspace or os.environ.get("PENSTOCK_WORKSPACE") or DEFAULT_WORKSPACE


def read_login() -> Login | None:
    """What `penstock login` stored; None if nothing. Raises `AccessDeniedError` if other users can read it."""
    path = _login_path()
    try:
        with path.open(encoding="utf-8") as file:
            if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise AccessDeniedError(
                    f"{path} contains an API key, and other users may read it; run `chmod 600` on it, or revoke the key"
                    " if somebody may have read it"
                )
            found = json.load(file)
        return Login(str(found["url"]), str(found["key"]), str(found["workspace"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessDeniedError(f"{path} cannot be read ({error.strerror}); fix it, or run `penstock login`") from error
    except (ValueError, KeyError, TypeError):
        raise InvalidInputError(f"{path} is damaged; run `penstock login` again") from None


def write_login(login: Login) -> Path:
    """Store a login, readable by this user only, and return its file."""
    path = _login_path()
    write_private(path, json.dumps({"url": login.url, "key": login.key, "workspace": login.workspace}))
    return path


def write_private(path: Path, text: str) -> None:
    """Write or replace a file that only this user can read; raises `AccessDeniedError`."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise AccessDeniedError(f"{path} cannot be written ({error.strerror}); set PENSTOCK_HOME") from error


def remove_login() -> Path | None:
    """Delete the stored login and return its file; None if there is none."""
    path = _login_path()
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessDeniedError(f"{path} cannot be deleted ({error.strerror}); delete it by hand") from error
    return path


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_url(url: str, source: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or "@" in parts.netloc or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
        raise InvalidInputError(
            f"{source} does not name a server; write https://host or https://host:port, without a user or a question"
        )
    if parts.scheme == "http" and not is_loopback(url) and os.environ.get("PENSTOCK_ALLOW_HTTP") != "1":
        raise InvalidInputError(
            f"{url} (from {source}) is not encrypted, so anybody on the way could read the API key; use https://, or"
            " set PENSTOCK_ALLOW_HTTP=1 in a network where all machines are trusted"
        )


def _first(argument: tuple[str | None, str], variable: str) -> tuple[str | None, str]:
    """The argument, else the environment variable; None if neither is set; and the name of what is set."""
    value, name = argument
    if value is not None:
        return value.strip(), name
    return os.environ.get(variable, "").strip() or None, variable


def _login_path() -> Path:
    return catalog_folder(os.environ, sys.platform) / "login.json"


def _login_source() -> str:
    return f"{_login_path()} (`penstock login`)"
