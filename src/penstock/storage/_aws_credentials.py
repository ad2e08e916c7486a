"""Profiles of the AWS tools, which obstore does not read: keys, assumed roles, SSO, credential_process, by boto3."""

import os
from collections.abc import Mapping
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import InvalidInputError
from penstock.storage._obstore_errors import translated_botocore

if TYPE_CHECKING:
    from obstore.store import S3Credential

_OBSTORE_SOURCES = {
    "access_key_id",
    "skip_signature",
    "web_identity_token_file",
    "container_credentials_full_uri",
    "container_credentials_relative_uri",
}
"""Options and variables (without `AWS_`) that obstore signs with, or does without, by itself."""
_PROFILE_SOURCES = {
    "aws_access_key_id",
    "credential_process",
    "login_session",
    "role_arn",
    "sso_session",
    "sso_start_url",
}
"""Settings of a profile that say how to get credentials."""
# botocore renews credentials at the latest ten minutes before they expire, so those it returns last longer than this.
_TTL = timedelta(minutes=8)


class AwsProfile(NamedTuple):
    """What a profile adds to the options and the environment."""

    config: dict[str, str]
    """Region and endpoint."""
    credentials: "ProfileCredentials | None" = None


class ProfileCredentials:
    """A credential provider for obstore: nothing is fetched before the first request."""

    def __init__(self, session: Any, profile: str) -> None:
        self._session, self._profile = session, profile
        self._provider: Any = None

    def __call__(self) -> "S3Credential":
        """Credentials that are valid for some minutes; obstore sees an error only as its text."""
        from obstore.auth.boto3 import Boto3CredentialProvider

        with translated_botocore(self._profile):
            if self._provider is None:
                self._provider = Boto3CredentialProvider(self._session, ttl=_TTL)
            credentials: S3Credential = self._provider()
            return credentials


def load_aws_profile(profile: str | None, options: Mapping[str, str]) -> AwsProfile:
    """Load a profile named in the options, by AWS_PROFILE, or the default one.

    One named in the options takes precedence over the environment; any other does not. Raises `InvalidInputError` for a
    profile that does not exist, and for one with credentials if boto3 is not installed.
    """
    given = {_setting(key) for key in options}
    if profile is None:
        given |= {_setting(key) for key in os.environ if key.startswith("AWS_")}
    named = profile or os.environ.get("AWS_PROFILE")
    files = [
        Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(),
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser(),
    ]
    if not named and not any(file.exists() for file in files):
        return AwsProfile({})
    try:
        import boto3  # noqa: F401  # obstore's provider needs it
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.session import Session
    except ImportError as error:
        if given & _OBSTORE_SOURCES or not (named or _default_has_credentials(files)):
            return AwsProfile({})
        raise InvalidInputError(
            f"AWS profile {named or 'default'!r} is read by boto3, which is not installed; "
            "run `pip install 'penstock[aws]'`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    session = Session(profile=profile)
    with translated_botocore(named or "default"):
        settings = session.get_scoped_config()
        endpoint = ConfiguredEndpointProvider(session.full_config, settings, "s3", environ={}).provide()
    config = {}
    if "region" in settings and not given & {"region", "default_region"}:
        config["region"] = settings["region"]
    if endpoint and not given & {"endpoint", "endpoint_url", "endpoint_url_s3"}:
        config["endpoint"] = endpoint
    if given & _OBSTORE_SOURCES or not settings.keys() & _PROFILE_SOURCES:
        return AwsProfile(config)
    return AwsProfile(config, ProfileCredentials(session, named or "default"))


def _setting(key: str) -> str:
    return key.lower().removeprefix("aws_")


def _default_has_credentials(files: list[Path]) -> bool:
    """Whether the default profile needs boto3, found out without it."""
    parser = RawConfigParser(strict=False)
    try:
        parser.read(files)
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read {files[0]} or {files[1]}: {error}; correct the file") from error
    return parser.has_section("default") and not _PROFILE_SOURCES.isdisjoint(parser["default"])
