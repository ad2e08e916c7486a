"""Vended credentials of S3, tried with every verb against everything, on a store that enforces session policies."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock.catalog import Access
from tests.catalog.vending.vendors import s3_vendor
from tests.servers import StsServer, sts_server

STORAGE = "teams/lake"


def client(service: str, server: StsServer, options: Any) -> Any:
    named = {
        name: value for name, value in options.items() if name.startswith(("aws_access", "aws_secret", "aws_session"))
    }
    config = Config(retries={"total_max_attempts": 1}, request_checksum_calculation="when_required")
    return boto3.client(
        service, endpoint_url=server.endpoint, region_name=options["aws_region"], config=config, **named
    )


class Target(NamedTuple):
    """Where a verb is tried: a bucket and a prefix, with or without a slash at its end."""

    bucket: str
    prefix: str

    @property
    def key(self) -> str:
        return f"{self.prefix}object"


class Attempt(NamedTuple):
    """A client with vended credentials of table a, what it tries to reach, and the table that it may reach."""

    s3: Any
    target: Target
    own: Target
    upload: str
    """A multipart upload of the target that the server has begun."""


OBJECT_VERBS: dict[str, Callable[[Attempt], Any]] = {
    "get": lambda at: at.s3.get_object(Bucket=at.target.bucket, Key=at.target.key)["Body"].read(),
    "get range": lambda at: at.s3.get_object(Bucket=at.target.bucket, Key=at.target.key, Range="bytes=0-1"),
    "head": lambda at: at.s3.head_object(Bucket=at.target.bucket, Key=at.target.key),
    "list": lambda at: at.s3.list_objects_v2(Bucket=at.target.bucket, Prefix=at.target.prefix),
    "list v1": lambda at: at.s3.list_objects(Bucket=at.target.bucket, Prefix=at.target.prefix),
    "put": lambda at: at.s3.put_object(Bucket=at.target.bucket, Key=at.target.key, Body=b"changed"),
    "create": lambda at: at.s3.put_object(
        Bucket=at.target.bucket, Key=f"{at.target.prefix}new-{at.upload}", Body=b"new", IfNoneMatch="*"
    ),
    "multipart": lambda at: multipart(at.s3, at.target),
    "upload part": lambda at: at.s3.upload_part(
        Bucket=at.target.bucket, Key=at.target.key, UploadId=at.upload, PartNumber=1, Body=b"part"
    ),
    "list parts": lambda at: at.s3.list_parts(Bucket=at.target.bucket, Key=at.target.key, UploadId=at.upload),
    "abort": lambda at: at.s3.abort_multipart_upload(Bucket=at.target.bucket, Key=at.target.key, UploadId=at.upload),
    "copy within": lambda at: copy(at.s3, at.target, at.target),
    "delete": lambda at: at.s3.delete_object(Bucket=at.target.bucket, Key=at.target.key),
    "bulk delete": lambda at: bulk_delete(at.s3, at.target),
    "get acl": lambda at: at.s3.get_object_acl(Bucket=at.target.bucket, Key=at.target.key),
    "put acl": lambda at: at.s3.put_object_acl(Bucket=at.target.bucket, Key=at.target.key, ACL="public-read"),
    "get tags": lambda at: at.s3.get_object_tagging(Bucket=at.target.bucket, Key=at.target.key),
    "put tags": lambda at: at.s3.put_object_tagging(
        Bucket=at.target.bucket, Key=at.target.key, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]}
    ),
    "delete tags": lambda at: at.s3.delete_object_tagging(Bucket=at.target.bucket, Key=at.target.key),
    "list versions": lambda at: at.s3.list_object_versions(Bucket=at.target.bucket, Prefix=at.target.prefix),
    "list uploads": lambda at: at.s3.list_multipart_uploads(Bucket=at.target.bucket, Prefix=at.target.prefix),
    "lock": lambda at: at.s3.put_object_legal_hold(
        Bucket=at.target.bucket, Key=at.target.key, LegalHold={"Status": "ON"}
    ),
}
"""Tried on the objects of a target."""

CROSSING_VERBS: dict[str, Callable[[Attempt], Any]] = {
    "copy in": lambda at: copy(at.s3, at.target, at.own),
    "copy out": lambda at: copy(at.s3, at.own, at.target),
    "copy part in": lambda at: copy_part(at.s3, at.target, at.own),
    "bulk delete with own": lambda at: bulk_delete(at.s3, at.target, at.own),
}
"""Tried from table a to another target."""

PUBLIC = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"*"}]}'
BUCKET_VERBS: dict[str, Callable[[Any, str], Any]] = {
    "list all": lambda s3, bucket: s3.list_objects_v2(Bucket=bucket),
    "list all v1": lambda s3, bucket: s3.list_objects(Bucket=bucket),
    "list folders": lambda s3, bucket: s3.list_objects_v2(Bucket=bucket, Delimiter="/"),
    "list storage": lambda s3, bucket: s3.list_objects_v2(Bucket=bucket, Prefix=f"{STORAGE}/"),
    "list versions": lambda s3, bucket: s3.list_object_versions(Bucket=bucket),
    "list uploads": lambda s3, bucket: s3.list_multipart_uploads(Bucket=bucket),
    "list buckets": lambda s3, _: refuse_if_empty(s3.list_buckets()["Buckets"]),
    "create bucket": lambda s3, bucket: s3.create_bucket(Bucket=f"{bucket}-of-client"),
    "delete bucket": lambda s3, bucket: s3.delete_bucket(Bucket=bucket),
    "get policy": lambda s3, bucket: s3.get_bucket_policy(Bucket=bucket),
    "put policy": lambda s3, bucket: s3.put_bucket_policy(Bucket=bucket, Policy=PUBLIC),
    "delete policy": lambda s3, bucket: s3.delete_bucket_policy(Bucket=bucket),
    "get bucket acl": lambda s3, bucket: s3.get_bucket_acl(Bucket=bucket),
    "put bucket acl": lambda s3, bucket: s3.put_bucket_acl(Bucket=bucket, ACL="public-read"),
    "put cors": lambda s3, bucket: s3.put_bucket_cors(
        Bucket=bucket, CORSConfiguration={"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    ),
    "put versioning": lambda s3, bucket: s3.put_bucket_versioning(
        Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
    ),
    "delete lifecycle": lambda s3, bucket: s3.delete_bucket_lifecycle(Bucket=bucket),
}

READS = {"get", "get range", "head", "list", "list v1"}
WRITES = {"put", "create", "multipart", "upload part", "list parts", "abort", "copy within", "delete", "bulk delete"}
ALLOWED: dict[Access, set[str]] = {"read": READS, "write": READS | WRITES}
"""What works, on the objects of table a alone; the store must refuse everything else."""


def multipart(s3: Any, target: Target) -> None:
    where = {"Bucket": target.bucket, "Key": target.key}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    part = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
    s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)


def copy(s3: Any, source: Target, destination: Target) -> None:
    s3.copy_object(
        Bucket=destination.bucket,
        Key=f"{destination.prefix}copy",
        CopySource={"Bucket": source.bucket, "Key": source.key},
    )


def copy_part(s3: Any, source: Target, destination: Target) -> None:
    where = {"Bucket": destination.bucket, "Key": f"{destination.prefix}copy"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    s3.upload_part_copy(**where, UploadId=upload, PartNumber=1, CopySource={"Bucket": source.bucket, "Key": source.key})


def bulk_delete(s3: Any, *targets: Target) -> None:
    objects = [{"Key": target.key} for target in targets]
    response = s3.delete_objects(Bucket=targets[0].bucket, Delete={"Objects": objects})
    for error in response.get("Errors", ()):
        raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}}, "DeleteObjects")


def refuse_if_empty(buckets: list[Any]) -> None:
    """A listing of no buckets shows nothing."""
    if not buckets:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListBuckets")


def is_allowed(verb: Callable[..., Any], *arguments: Any) -> bool:
    try:
        verb(*arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "403"):
            raise  # any other refusal would prove nothing
        return False
    return True


OTHERS = ("table b", "sibling", "prefix without its slash", "storage", "bucket root", "same prefix of another bucket")


class Wall:
    """Table a, and everything that its credentials must not reach."""

    def __init__(self) -> None:
        self.server = sts_server()
        self.vendor = s3_vendor(STORAGE)
        self.locations = [self.vendor.new_location() for _ in range(2)]
        self.root = client("s3", self.server, {f"aws_{name}": value for name, value in self.server.options.items()})
        self.root.create_bucket(Bucket="other")
        own, foreign = (f"{location.removeprefix(f's3://{self.server.bucket}/')}/" for location in self.locations)
        bucket = self.server.bucket
        self.own = Target(bucket, own)
        places = [foreign, f"{own.rstrip('/')}0/", own.rstrip("/"), f"{STORAGE}/", ""]
        targets = [*(Target(bucket, prefix) for prefix in places), Target("other", own)]
        self.others = dict(zip(OTHERS, targets, strict=True))
        for target in (self.own, *self.others.values()):
            self.root.put_object(Bucket=target.bucket, Key=target.key, Body=b"original")

    def client(self, access: Access) -> Any:
        return client("s3", self.server, self.vendor.vend(self.locations[0], access).options)

    def keys(self, target: Target) -> set[str]:
        listed = self.root.list_objects_v2(Bucket=target.bucket, Prefix=target.prefix)
        return {entry["Key"] for entry in listed["Contents"]}

    def attempts(self, access: Access, target: Target) -> Iterator[Attempt]:
        """Attempts that are each prepared anew, because verbs change and delete what others need."""
        s3 = self.client(access)
        while True:
            self.root.put_object(Bucket=target.bucket, Key=target.key, Body=b"original")
            upload = self.root.create_multipart_upload(Bucket=target.bucket, Key=target.key)["UploadId"]
            yield Attempt(s3, target, self.own, upload)


@pytest.fixture(scope="module")
def wall() -> Wall:
    return Wall()


ACCESSES: tuple[Access, ...] = ("read", "write")


@pytest.mark.parametrize("access", ACCESSES)
def test_credentials_do_with_their_own_table_what_they_are_for_and_nothing_else(wall: Wall, access: Access) -> None:
    attempts = zip(OBJECT_VERBS.items(), wall.attempts(access, wall.own), strict=False)
    assert {name for (name, verb), attempt in attempts if is_allowed(verb, attempt)} == ALLOWED[access]


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("name", OTHERS)
def test_no_verb_reaches_anything_else(wall: Wall, access: Access, name: str) -> None:
    target = wall.others[name]
    before = wall.keys(target)
    attempts = zip((OBJECT_VERBS | CROSSING_VERBS).items(), wall.attempts(access, target), strict=False)
    assert [name for (name, verb), attempt in attempts if is_allowed(verb, attempt)] == []
    assert wall.root.get_object(Bucket=target.bucket, Key=target.key)["Body"].read() == b"original"
    assert wall.keys(target) == before


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("bucket", ["lake", "other"])
def test_no_verb_reaches_a_bucket(wall: Wall, access: Access, bucket: str) -> None:
    s3 = wall.client(access)
    assert [name for name, verb in BUCKET_VERBS.items() if is_allowed(verb, s3, bucket)] == []


@pytest.mark.parametrize("access", ACCESSES)
def test_credentials_cannot_become_others(wall: Wall, access: Access) -> None:
    """Else they could drop their session policy: the role of this server may be assumed by anyone."""
    credentials = wall.vendor.vend(wall.locations[0], access)
    sts = client("sts", wall.server, credentials.options)
    assert not is_allowed(lambda: sts.assume_role(RoleArn=wall.server.role_arn, RoleSessionName="again"))
    without_token = {name: value for name, value in credentials.options.items() if name != "aws_session_token"}
    s3 = client("s3", wall.server, without_token)
    with pytest.raises(ClientError, match=r"InvalidAccessKeyId|AccessDenied"):
        s3.get_object(Bucket=wall.own.bucket, Key=wall.own.key)


def test_the_token_of_one_table_does_not_fit_the_keys_of_another(wall: Wall) -> None:
    mine, other = (wall.vendor.vend(location, "read").options for location in wall.locations)
    s3 = client("s3", wall.server, {**mine, "aws_session_token": other["aws_session_token"]})
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|AccessDenied|InvalidAccessKeyId"):
        s3.get_object(Bucket=wall.own.bucket, Key=wall.others["table b"].key)
