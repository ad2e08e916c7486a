"""Storage options by their bare names: every name may have a prefix, and some have several spellings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInputError

_PREFIXES = {"s3": ("aws_",), "az": ("azure_storage_", "azure_"), "gs": ("google_",)}
_ALIASES = {
    "s3": {
        "endpoint_url_s3": "endpoint",
        "endpoint_url": "endpoint",
        "default_region": "region",
        "token": "session_token",
    },
    "az": {"access_key": "account_key", "master_key": "account_key", "sas_key": "sas_token"},
    "gs": {"service_account_path": "service_account", "application_credentials": "service_account"},
}


def read_settings(scheme: str, options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a cloud, by bare names; options take precedence over the environment."""
    variables = {name.lower(): value for name, value in environ.items() if name.lower().startswith(_PREFIXES[scheme])}
    return bare(scheme, variables) | bare(scheme, options)


def bare(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options without prefixes and in one spelling."""
    found: dict[str, str] = {}
    for name, value in options.items():
        name = name.lower()
        prefix = next((prefix for prefix in _PREFIXES[scheme] if name.startswith(prefix)), "")
        found[name.removeprefix(prefix)] = value
    for alias, name in _ALIASES[scheme].items():
        if alias in found:
            value = found.pop(alias)
            found.setdefault(name, value)
    return found


def service_account(settings: Mapping[str, str]) -> dict[str, Any]:
    """The service account of Google among the settings, given as JSON or as a file; empty if there is none."""
    try:
        text = settings.get("service_account_key") or Path(settings["service_account"]).read_text()
        account = json.loads(text)
    except KeyError:
        return {}
    except (OSError, ValueError) as error:  # a message of the JSON parser quotes nothing
        raise InvalidInputError(
            f"the service account of Google cannot be read ({error}); give its JSON as service_account_key, or its "
            "file as service_account"
        ) from error
    if not isinstance(account, dict):
        raise InvalidInputError("the service account of Google is not a JSON object; download its key again")
    return account
