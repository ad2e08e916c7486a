"""Read the files of the AWS tools, which obstore does not."""

import configparser
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import InvalidInputError

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_OTHER_SOURCES = ("credential_process", "role_arn", "sso_session", "sso_start_url")


def load_aws_profile(
    profile: str | None, *, options: Mapping[str, str], environ: Mapping[str, str], home: Path
) -> dict[str, str]:
    """Return what a profile adds to the options and the environment: keys, region, endpoint.

    A profile named in the options wins over the environment; one named by AWS_PROFILE, or the default one, does not.
    """
    name = profile or environ.get("AWS_PROFILE") or "default"
    given = {_setting(key) for key in options}
    if profile is None:
        given |= {_setting(key) for key in environ if key.startswith("AWS_")}
    keys_path = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    config_path = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    section = _section(config_path, "default" if name == "default" else f"profile {name}") | _section(keys_path, name)
    named = profile is not None or "AWS_PROFILE" in environ
    if named and not section:
        raise InvalidInputError(f"no AWS profile {name!r} in {keys_path} or {config_path}; correct AWS_PROFILE")
    found = {}
    if not given & {"access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_full_uri"}:
        found = {key: section[key] for key in _KEYS if key in section}
        if named and not found and any(source in section for source in _OTHER_SOURCES):
            raise InvalidInputError(
                f"AWS profile {name!r} has no keys of its own; "
                f"run `eval $(aws configure export-credentials --profile {name} --format env)` first"
            )
    if "region" in section and not given & {"region", "default_region"}:
        found["region"] = section["region"]
    if "endpoint_url" in section and not given & {"endpoint", "endpoint_url", "endpoint_url_s3"}:
        found["endpoint"] = section["endpoint_url"]
    return found


def _setting(key: str) -> str:
    return key.lower().removeprefix("aws_")


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {path}: {error}; correct the file") from error
    return dict(parser[name]) if parser.has_section(name) else {}
