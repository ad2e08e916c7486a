"""S3: a role that the server assumes for each table, narrowed by a session policy."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config

from penstock.catalog._entry import Access
from penstock.catalog.vending._bucket import BucketVendor
from penstock.catalog.vending._locations import Locations, Prefix, split
from penstock.catalog.vending._settings import bare, read_settings
from penstock.errors import AccessDeniedError, InvalidInputError, PenstockError, StorageError, StorageTimeoutError
from penstock.storage import Credentials

_MULTIPART = ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_OBJECT_ACTIONS: dict[Access, tuple[str, ...]] = {
    "read": ("s3:GetObject",),
    "write": ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", *_MULTIPART),
}
_KEY_ACTIONS: dict[Access, tuple[str, ...]] = {
    "read": ("kms:Decrypt",),
    "write": ("kms:Decrypt", "kms:GenerateDataKey"),
}
"""For buckets with SSE-KMS; a session policy without them would refuse every object."""
_MIN_DURATION_S, _MAX_DURATION_S = 900, 43_200
_ROLE = re.compile(r"arn:([a-z0-9-]+):[!-~]+")
_AWS_HOST = re.compile(r"https?://[^/]+\.amazonaws\.com(\.cn)?(/|\Z)")
_REASON_LENGTH = 300


class S3Vendor(BucketVendor):
    """Credentials of a role for one prefix of a bucket.

    The token service issues none for less than 15 minutes. A shorter lifetime makes clients renew theirs earlier.
    """

    def __init__(self, locations: Locations, *, options: Mapping[str, str], role_arn: str, lifetime_s: float) -> None:
        partition = _ROLE.fullmatch(role_arn)
        if partition is None:
            raise InvalidInputError(f"{role_arn!r} is not the ARN of a role; write arn:aws:iam::<account>:role/<name>")
        super().__init__(locations, options)
        self._role_arn, self._lifetime_s = role_arn, lifetime_s
        self._partition = partition[1] if partition[1].startswith("aws") else "aws"
        with _translated(role_arn):
            self._sts, self._settings = _connect(options)

    def vend(self, location: str, access: Access) -> Credentials:
        """Credentials of the role for the objects below a location, and for listing them."""
        self._locations.check(location)
        with _translated(self._role_arn):
            response = self._sts.assume_role(
                RoleArn=self._role_arn,
                RoleSessionName="penstock",
                Policy=session_policy(self._partition, split(location), access),
                DurationSeconds=round(min(max(self._lifetime_s, _MIN_DURATION_S), _MAX_DURATION_S)),
            )
        issued = response["Credentials"]
        keys = {
            "aws_access_key_id": issued["AccessKeyId"],
            "aws_secret_access_key": issued["SecretAccessKey"],
            "aws_session_token": issued["SessionToken"],
        }
        return Credentials(keys | self._settings, min(self._lifetime_s, _lifetime_s(response)))


def session_policy(partition: str, prefix: Prefix, access: Access) -> str:
    """The rights to one prefix of a bucket, as JSON: the credentials have those that the role has as well."""
    bucket = f"arn:{partition}:s3:::{prefix.bucket}"
    listing: dict[str, Any] = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket}
    if prefix.path:
        listing["Condition"] = {"StringLike": {"s3:prefix": f"{prefix.path}*"}}
    objects = {"Effect": "Allow", "Action": _OBJECT_ACTIONS[access], "Resource": f"{bucket}/{prefix.path}*"}
    by_s3 = {"StringLike": {"kms:ViaService": "s3.*"}}  # never by a request of the client to KMS itself
    keys = {"Effect": "Allow", "Action": _KEY_ACTIONS[access], "Resource": "*", "Condition": by_s3}
    # A trust policy that names too many would let a client assume the role again, without this policy.
    no_tokens = {"Effect": "Deny", "Action": "sts:*", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [objects, listing, keys, no_tokens]}
    return json.dumps(policy, separators=(",", ":"))


def _connect(options: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """A client of the token service, and the settings that clients need to reach the store."""
    given, settings = bare("s3", options), read_settings("s3", options, os.environ)
    session = boto3.Session(
        profile_name=given.get("profile"),
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token"),
        region_name=settings.get("region"),
    )
    region = session.region_name or "us-east-1"
    endpoint = settings.get("endpoint") or session.client("s3", region_name=region).meta.endpoint_url
    is_aws = _AWS_HOST.match(endpoint) is not None
    config = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
    # Compatible stores have their token service at the same address; AWS_ENDPOINT_URL_STS names another.
    sts_endpoint = None if is_aws or "AWS_ENDPOINT_URL_STS" in os.environ else endpoint
    sts = session.client("sts", region_name=region, endpoint_url=sts_endpoint, config=config)
    vended = {"aws_region": region}
    if "endpoint" in settings or not is_aws:
        vended["aws_endpoint"] = endpoint
    if style := settings.get("virtual_hosted_style_request"):
        vended["aws_virtual_hosted_style_request"] = style
    return sts, vended


def _lifetime_s(response: Mapping[str, Any]) -> float:
    """The rest of the lifetime, by the clock of the service that issued the credentials."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(date) if date else datetime.now(UTC)
    expiration: datetime = response["Credentials"]["Expiration"]
    return (expiration - now).total_seconds()


@contextmanager
def _translated(role_arn: str) -> Iterator[None]:
    """Raise Penstock's errors for botocore's."""
    try:
        yield
    except exceptions.ClientError as error:
        raise _translate_response(error, role_arn) from error
    except (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError) as error:
        raise StorageTimeoutError(f"the token service of S3 does not answer ({_reason(error)}); retry") from error
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise StorageError(
            f"the token service of S3 cannot be reached ({_reason(error)}); check the network, the endpoint in the "
            "storage options and AWS_ENDPOINT_URL_STS"
        ) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise AccessDeniedError(
            f"the server has no AWS credentials with which to assume {role_arn} ({_reason(error)}); set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
        ) from error
    except (exceptions.BotoCoreError, ValueError) as error:
        raise InvalidInputError(
            f"credentials for {role_arn} cannot be requested: {_reason(error)}; correct the storage options, the role "
            "or the AWS profile"
        ) from error


def _translate_response(error: Any, role_arn: str) -> PenstockError:
    # Some compatible stores answer without the element `Error`.
    details = error.response.get("Error") or error.response
    code = str(details.get("Code", ""))
    reason = f"{code}: {details.get('Message', '')}"[:_REASON_LENGTH]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "InvalidAccessKeyId"):
        return AccessDeniedError(f"the AWS credentials of the server are not valid ({reason}); renew them")
    if code in ("RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch"):
        return AccessDeniedError(
            f"the token service of S3 refuses the server's signature ({reason}); check its secret key and its clock"
        )
    if status in (401, 403):
        return AccessDeniedError(
            f"the server may not assume {role_arn} ({reason}); the role's trust policy must name the server's "
            "identity, and that identity needs sts:AssumeRole on the role"
        )
    if "DurationSeconds" in reason or "MaxSessionDuration" in reason:
        return InvalidInputError(
            f"{role_arn} cannot be assumed for that long ({reason}); raise the role's maximum session duration, or "
            "shorten the lifetime of credentials; a server that has a role itself gets one hour at most"
        )
    if 400 <= status < 500 and status != 429 and "Throttl" not in code:
        return InvalidInputError(
            f"the token service of S3 refuses the request for {role_arn} ({reason}); check the role and the storage"
        )
    return StorageError(f"the token service of S3 fails ({reason}); wait and retry")


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:_REASON_LENGTH]
