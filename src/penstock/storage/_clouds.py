"""Make obstore's clients from options, the environment and the clouds' own files."""

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.errors import InvalidInputError
from penstock.storage._aws_profile import load_aws_profile

Client: TypeAlias = AzureStore | GCSStore | S3Store

_MAKERS: dict[str, Callable[..., Client]] = {"az": AzureStore, "gs": GCSStore, "s3": S3Store}
_ADDRESS_VARIABLES = {
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
}
_ADDRESS_OPTIONS = ("endpoint", "_url", "_url_s3", "service_account", "service_account_path", "service_account_key")

_SIGNED_FOR, _SIGNED_AGAIN_S, _URLS_KEPT = timedelta(minutes=15), 300.0, 4096

CLOUD_SCHEMES = tuple(_MAKERS)


def make_client(
    scheme: str, bucket: str, options: Mapping[str, str], *, timeout_s: float, max_retries: int, retry_timeout_s: float
) -> Client:
    """Build a client whose every request ends within `timeout_s`."""
    config = _with_profile(scheme, options)
    config.setdefault("allow_http", str(any("http://" in value for value in _addresses(scheme, config))).lower())
    config.setdefault("connect_timeout", _milliseconds(min(timeout_s, 5.0)))
    config["timeout"] = _milliseconds(timeout_s)
    retry: Any = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=retry_timeout_s)}
    try:
        return _MAKERS[scheme](bucket, config=config, retry_config=retry)
    except (exceptions.BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(f"cannot open {scheme}://{bucket}: {reason}; correct the options") from error


def plain_urls(
    scheme: str, bucket: str, options: Mapping[str, str], client: Callable[[], Client]
) -> Callable[[str], str | None] | None:
    """What gives the URL of an object, signed if need be, where S3 is asked without TLS and no proxy; else None.

    The URL it gives is None where `client` cannot sign. One that is given again was signed less than five minutes ago.
    """
    if scheme != "s3":
        return None
    config = _with_profile(scheme, options)
    addresses = {value.rstrip("/") for value in _addresses(scheme, config)} - {""}
    if len(addresses) != 1 or "proxy_url" in config:
        return None
    [address] = addresses
    proxied = {"http", "all"}.intersection(getproxies()) and not proxy_bypass(urlsplit(address).hostname or "")
    if proxied or not address.startswith("http://"):
        return None
    if not _says_yes(config, "skip_signature"):

        @lru_cache(maxsize=_URLS_KEPT)
        def signed(path: str, _client_id: int, _period: int) -> str | None:
            try:
                return obstore.sign(client(), "GET", path, _SIGNED_FOR)
            except (exceptions.BaseError, OSError, ValueError):
                return None

        return lambda path: signed(path, id(client()), int(time.monotonic() // _SIGNED_AGAIN_S))
    if _says_yes(config, "virtual_hosted_style_request"):
        return None
    place = f"{address}/{quote(bucket)}"
    return lru_cache(maxsize=_URLS_KEPT)(lambda path: f"{place}/{quote(path)}")


def _says_yes(config: Mapping[str, str], name: str) -> bool:
    values = [value for key, value in config.items() if key.lower().removeprefix("aws_") == name]
    return (values or [os.environ.get(f"AWS_{name.upper()}", "")])[0].lower() in ("1", "on", "t", "true", "y", "yes")


def _with_profile(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    config = dict(options)
    if scheme == "s3":
        profile = config.pop("profile", None)
        config |= load_aws_profile(profile, options=config, environ=os.environ, home=Path.home())
    return config


def _addresses(scheme: str, config: Mapping[str, str]) -> list[str]:
    """What the user named of addresses, and of files with addresses in them; without TLS only if one of them is."""
    named = [value for key, value in config.items() if key.lower().endswith(_ADDRESS_OPTIONS)]
    named += [os.environ.get(variable, "") for variable in _ADDRESS_VARIABLES[scheme]]
    named += [Path(value).read_text() for value in named if value.endswith(".json") and Path(value).is_file()]
    return named


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"
