"""Build obstore's clients from options, the environment and the clouds' own files."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.errors import InvalidInputError
from penstock.storage._aws_credentials import load_aws_profile
from penstock.storage._credentials import IssuedCredentials, RenewedCredentials, split_options
from penstock.storage._obstore_errors import is_panic

Client: TypeAlias = AzureStore | GCSStore | S3Store

_CONSTRUCTORS: dict[str, Callable[..., Client]] = {"az": AzureStore, "gs": GCSStore, "s3": S3Store}
_ENDPOINT_VARIABLES = {
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
}
_ENDPOINT_OPTIONS = ("endpoint", "_url", "_url_s3", "service_account", "service_account_path", "service_account_key")

_ENDPOINT_NAME = re.compile(r"(aws_|azure_|azure_storage_)?endpoint(_url(_s3)?)?")
_ENDPOINT = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")

# obstore reads the environment; these keep variables that are meant for the user's own credentials from these clients.
_ISSUED_DEFAULTS = {
    "az": {"use_emulator": "false", "use_fabric_endpoint": "false"},
    "gs": {"base_url": "https://storage.googleapis.com"},
    "s3": {"region": "us-east-1", "s3_express": "false", "virtual_hosted_style_request": "false"},
}

_USER_SIGNING = ("profile", "service_account_key", "skip_signature")
_ACCOUNT_VARIABLES = {
    *("google_bearer_token", "google_service_account", "google_service_account_path", "service_account"),
}
"""Take precedence over a service account's key among the settings, or exclude it; in any case of letters."""

CLOUD_SCHEMES = tuple(_CONSTRUCTORS)


class ClientConfig(NamedTuple):
    """Settings by obstore's names, and the credential provider where obstore does not sign by itself."""

    settings: dict[str, str]
    credentials: Callable[[], Any] | None


def load_config(scheme: str, options: Mapping[str, str], renewed: RenewedCredentials | None) -> ClientConfig:
    """Combine the options with issued credentials, else with an AWS profile.

    Raises `InvalidInputError` for a profile that cannot be used.
    """
    if renewed is not None:
        issued = renewed.current
        provider = renewed if issued is None or not issued.signing else None
        return ClientConfig(_issued_settings(scheme, options, issued), provider)
    settings: dict[str, str] = dict(options)
    credentials = None
    if scheme == "s3":
        profile = load_aws_profile(settings.pop("profile", None), settings)
        settings, credentials = settings | profile.config, profile.credentials
    settings.setdefault("allow_http", str(any("http://" in value for value in _endpoints(scheme, settings))).lower())
    return ClientConfig(settings, credentials)


def _issued_settings(scheme: str, options: Mapping[str, str], issued: IssuedCredentials | None) -> dict[str, str]:
    """Settings that came with issued credentials, and the options, which take precedence; none of the environment."""
    came, signing = ({}, {}) if issued is None else (issued.settings, issued.signing)
    given = {name: value for name, value in split_options(scheme, options)[1].items() if name not in _USER_SIGNING}
    settings = _ISSUED_DEFAULTS[scheme] | came | given | {"skip_signature": "false"} | signing
    if "service_account_key" in signing:
        for name in (name for name in os.environ if name.lower() in _ACCOUNT_VARIABLES):
            raise InvalidInputError(f"{name} would replace the service account that the server issues; unset {name}")
    if scheme == "s3":
        settings.setdefault("endpoint", f"https://s3.{settings['region']}.amazonaws.com")
        settings["aws_endpoint_url_s3"] = settings["endpoint"]  # the variable takes precedence over `endpoint`
    if scheme == "az" and "endpoint" not in settings:
        if "account_name" not in settings:
            raise InvalidInputError("az:// needs the option account_name, which came with no credentials either")
        settings["endpoint"] = f"https://{settings['account_name']}.blob.core.windows.net"
    url = settings["base_url" if scheme == "gs" else "endpoint"]
    return {"allow_http": str(url.startswith("http://")).lower()} | settings


def make_client(
    scheme: str, bucket: str, config: ClientConfig, *, timeout_s: float, max_retries: int, retry_timeout_s: float
) -> Client:
    """Build a client whose requests time out after `timeout_s`; raises `InvalidInputError` for wrong options."""
    _check_endpoints(scheme, config.settings)
    settings = {"connect_timeout": _milliseconds(min(timeout_s, 5.0))} | config.settings
    settings["timeout"] = _milliseconds(timeout_s)
    kwargs: dict[str, Any] = {
        "retry_config": {"max_retries": max_retries, "retry_timeout": timedelta(seconds=retry_timeout_s)}
    }
    if config.credentials is not None:
        kwargs["credential_provider"] = config.credentials
    try:
        return _CONSTRUCTORS[scheme](bucket, config=settings, **kwargs)
    except BaseException as error:
        if not isinstance(error, exceptions.BaseError | OSError | ValueError) and not is_panic(error):
            raise
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(f"cannot open {scheme}://{bucket}: {reason}; correct the options") from error


def _check_endpoints(scheme: str, settings: Mapping[str, str]) -> None:
    given = {name: value for name, value in settings.items() if _ENDPOINT_NAME.fullmatch(name.lower())}
    given |= {name: os.environ.get(name, "") for name in _ENDPOINT_VARIABLES[scheme] if "ENDPOINT" in name}
    for name, value in given.items():
        if value and not _ENDPOINT.fullmatch(value):
            raise InvalidInputError(
                f"{name} is {value!r}; write a URL with its scheme, such as http://127.0.0.1:9000 or https://host"
            )


def _endpoints(scheme: str, settings: Mapping[str, str]) -> list[str]:
    """Endpoints in the options and the environment, and the content of key files, which may name one."""
    named = [value for key, value in settings.items() if key.lower().endswith(_ENDPOINT_OPTIONS)]
    named += [os.environ.get(variable, "") for variable in _ENDPOINT_VARIABLES[scheme]]
    named += [Path(value).read_text() for value in named if value.endswith(".json") and Path(value).is_file()]
    return named


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"
