"""Where the credentials of a store come from; reports locations, never values."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Sources:
    options: tuple[str, ...]
    """Suffixes of the names of storage options with credentials."""
    variables: tuple[str, ...]
    files: tuple[str, ...]
    """Relative to the home folder."""


_SOURCES = {
    "s3": _Sources(
        ("access_key_id", "profile", "skip_signature", "web_identity_token_file"),
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
        (".aws/credentials", ".aws/config"),
    ),
    "gs": _Sources(
        ("service_account", "service_account_path", "service_account_key", "application_credentials", "skip_signature"),
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY",
         "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"),
        (".config/gcloud/application_default_credentials.json",),
    ),
    "az": _Sources(
        ("account_key", "access_key", "sas_token", "sas_key", "client_secret", "token_file", "skip_signature"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY",
         "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
        (),
    ),
}  # fmt: skip


def credentials(uri: str, options: Mapping[str, str]) -> str:
    """A description of where credentials for a URI were found."""
    sources = _SOURCES.get(uri.partition("://")[0])
    if sources is None:
        return "none needed"
    found = [f"--option {key}" for key in options if key.lower().endswith(sources.options)]
    found += [variable for variable in sources.variables if os.environ.get(variable)]
    found += [f"~/{file}" for file in sources.files if (Path.home() / file).exists()]
    return (
        f"found in {', '.join(found)}"
        if found
        else "none found; machines of the cloud may still get them from its metadata service"
    )
