"""Choose the vendor of a storage by its scheme."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, cast

from penstock.catalog.vending._folder import FolderVendor
from penstock.catalog.vending._locations import make_locations
from penstock.catalog.vending._settings import read_settings, service_account
from penstock.catalog.vending._shared import SharedVendor
from penstock.catalog.vending._vendor import Vendor
from penstock.errors import InvalidInputError
from penstock.storage import local_path

_Scheme = Literal["s3", "gs", "az", "memory"]
_SCHEMES = ("s3", "gs", "az", "memory")


def make_vendor(
    storage: str,
    *,
    options: Mapping[str, str],
    role_arn: str | None,
    lifetime_s: float,
    allow_shared: bool,
    hierarchical: bool = False,
    locations: Sequence[str] = (),
) -> Vendor:
    """The vendor for tables in a storage, chosen by its scheme.

    `options` are those with which the server opens the storage, `role_arn` is the role that it assumes on S3,
    `hierarchical` says that an Azure account has a hierarchical namespace, and `locations` are others in which tables
    may be registered. Raises `InvalidInputError` where credentials cannot be limited to a table, unless `allow_shared`.
    """
    if lifetime_s <= 0:
        raise InvalidInputError(f"credentials cannot last {lifetime_s:g} s; give a positive lifetime")
    if local_path(storage) is not None:
        return FolderVendor(make_locations(storage, locations, "folder"))
    text = storage.partition("://")[0]
    if text not in _SCHEMES:
        raise InvalidInputError(f"{text}:// cannot hold the tables of a server; use a folder, s3, gs or az")
    scheme = cast(_Scheme, text)
    reason = _why_not_narrow(scheme, options, role_arn)
    if reason is None:
        known = make_locations(storage, locations, "container" if scheme == "az" and not hierarchical else scheme)
        if scheme == "s3":
            from penstock.catalog.vending._s3 import S3Vendor

            return S3Vendor(known, options=options, lifetime_s=lifetime_s, role_arn=role_arn or "")
        if scheme == "az":
            from penstock.catalog.vending._azure import AzureVendor

            return AzureVendor(known, options=options, lifetime_s=lifetime_s)
        from penstock.catalog.vending._gcs import GcsVendor

        return GcsVendor(known, options=options, lifetime_s=lifetime_s)
    if not allow_shared:
        raise InvalidInputError(
            f"credentials for {storage} cannot be limited to one table: {reason}; or start the server with "
            "--allow-shared-credentials, which gives its own credentials, with all their rights, to every member"
        )
    return SharedVendor(make_locations(storage, locations, scheme), scheme=scheme, options=options)


def _why_not_narrow(scheme: _Scheme, options: Mapping[str, str], role_arn: str | None) -> str | None:
    """What is missing for credentials of one table; None if nothing is."""
    if scheme == "memory":
        return "memory has no access control; use a folder or a bucket"
    settings = read_settings(scheme, options, os.environ)
    if scheme == "s3":
        if role_arn is None:
            return "no role is given; create one that has access to the storage, and give it as --role-arn"
        if not _is_installed("boto3"):  # whoever names a role must not get shared credentials
            raise InvalidInputError(
                "a role is assumed by boto3, which is not installed; run `pip install 'penstock[server]'`"
            )
        return None
    if scheme == "az":
        if not _is_installed("azure.storage.blob"):
            return "azure-storage-blob is not installed; run `pip install 'penstock[azure]'`"
        if "account_key" in settings or _is_installed("azure.identity"):
            return None
        return (
            "no key of the account is given; give the storage option account_key, or run `pip install azure-identity`"
        )
    if not _is_installed("google.auth"):
        return "google-auth is not installed; run `pip install 'penstock[gcs]'`"
    if service_account(settings).get("disable_oauth"):
        return "its service account requests no tokens (disable_oauth)"
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
