"""Make obstore's clients from options, the environment and the clouds' own files."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

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

CLOUD_SCHEMES = tuple(_MAKERS)


def make_client(
    scheme: str, bucket: str, options: Mapping[str, str], *, timeout_s: float, max_retries: int, retry_timeout_s: float
) -> Client:
    """Build a client whose every request ends within `timeout_s`."""
    config = dict(options)
    if scheme == "s3":
        profile = config.pop("profile", None)
        config |= load_aws_profile(profile, options=config, environ=os.environ, home=Path.home())
    config.setdefault("allow_http", str(_is_plain_http(scheme, config)).lower())
    config.setdefault("connect_timeout", _milliseconds(min(timeout_s, 5.0)))
    config["timeout"] = _milliseconds(timeout_s)
    retry: Any = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=retry_timeout_s)}
    try:
        return _MAKERS[scheme](bucket, config=config, retry_config=retry)
    except (exceptions.BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(f"cannot open {scheme}://{bucket}: {reason}; correct the options") from error


def _is_plain_http(scheme: str, config: Mapping[str, str]) -> bool:
    """Say whether the user named an address without TLS; only then is one allowed."""
    named = [value for key, value in config.items() if key.lower().endswith(_ADDRESS_OPTIONS)]
    named += [os.environ.get(variable, "") for variable in _ADDRESS_VARIABLES[scheme]]
    named += [Path(value).read_text() for value in named if value.endswith(".json") and Path(value).is_file()]
    return any("http://" in value for value in named)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"
