"""Signatures of Azure: what a container's allows on azurite, and what a directory's says, which azurite refuses."""

import secrets
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient, UserDelegationKey

from penstock.catalog import Access
from penstock.catalog.vending import Vendor, make_vendor
from penstock.catalog.vending._azure import AzureVendor
from penstock.catalog.vending._locations import make_locations
from penstock.errors import AccessDeniedError, InvalidInputError, StorageError
from penstock.storage import open_store
from tests.catalog.vending.vendors import azure_vendor

READS = {"get", "head", "list"}
WRITES = {"put", "stage block", "delete", "copy within"}
VERBS: dict[str, Callable[[Any], Any]] = {
    "get": lambda container: container.download_blob("object").readall(),
    "head": lambda container: container.get_blob_client("object").get_blob_properties(),
    "list": lambda container: list(container.list_blobs()),
    "put": lambda container: container.upload_blob("object", b"changed", overwrite=True),
    "stage block": lambda container: container.get_blob_client("block").stage_block("MDAw", b"part"),
    "copy within": lambda container: container.get_blob_client("copy").start_copy_from_url(
        container.get_blob_client("object").url
    ),
    "delete": lambda container: container.delete_blob("object"),
    "create container": lambda container: container.create_container(),
    "delete container": lambda container: container.delete_container(),
    "get policy": lambda container: container.get_container_access_policy(),
    "set policy": lambda container: container.set_container_access_policy({}, public_access="blob"),
    "set metadata": lambda container: container.set_container_metadata({"a": "b"}),
}


def service(vendor: Vendor, credential: Any) -> BlobServiceClient:
    return BlobServiceClient(vendor.server_options["endpoint"], credential=credential, retry_total=0)


def token(vendor: Vendor, location: str, access: Access) -> str:
    return vendor.vend(location, access).options["azure_storage_sas_token"]


def is_allowed(verb: Callable[[Any], Any], container: Any) -> bool:
    try:
        verb(container)
    except HttpResponseError as error:
        if error.status_code != 403:
            raise  # any other refusal would prove nothing
        return False
    return True


@pytest.mark.parametrize(("access", "allowed"), [("read", READS), ("write", READS | WRITES)])
def test_a_signature_allows_what_it_is_for_in_one_container(access: Access, allowed: set[str]) -> None:
    vendor = azure_vendor()
    mine, other = vendor.new_location(), vendor.new_location()
    root = service(vendor, vendor.server_options["account_key"])
    signed = service(vendor, token(vendor, mine, access))
    for location, expected in ((mine, allowed), (other, set())):
        name = location.removeprefix("az://")
        found = set()
        for verb_name, verb in VERBS.items():
            root.get_container_client(name).upload_blob("object", b"original", overwrite=True)
            if is_allowed(verb, signed.get_container_client(name)):
                found.add(verb_name)
        assert found == expected
    assert not is_allowed(lambda account: list(account.list_containers()), signed)


def test_an_expired_signature_is_refused() -> None:
    vendor = azure_vendor(lifetime_s=3)
    location = vendor.new_location()
    credentials = vendor.vend(location, "write")
    assert credentials.lifetime_s is not None
    assert credentials.lifetime_s <= 3
    time.sleep(credentials.lifetime_s + 3)
    with pytest.raises(AccessDeniedError):
        open_store(location, options=credentials.options).put("key", b"value")


def test_a_directory_has_a_signature_of_its_own_in_a_hierarchical_namespace() -> None:
    vendor = azure_vendor(hierarchical=True)
    location = vendor.new_location()
    assert location.startswith(f"{vendor.storage}/")
    expected: dict[Access, str] = {"read": "rl", "write": "rcwdl"}
    for access, permissions in expected.items():
        fields = parse_qs(token(vendor, location, access))
        assert (fields["sr"], fields["sdd"], fields["sp"]) == (["d"], ["1"], [permissions])


def test_clients_that_use_https_must_not_send_a_signature_in_the_clear() -> None:
    vendor = azure_vendor_with({"account_name": "a", "account_key": "AAAA"})
    credentials = vendor.vend(f"{vendor.storage}-{'0' * 32}", "read")
    assert parse_qs(credentials.options["azure_storage_sas_token"])["spr"] == ["https"]
    assert set(credentials.options) == {"azure_storage_account_name", "azure_storage_sas_token"}


class DelegationService:
    """Issues user delegation keys as an account does for an identity, and counts them."""

    def __init__(self) -> None:
        self.issued = 0

    def get_user_delegation_key(self, start: datetime, end: datetime) -> Any:
        self.issued += 1
        key: Any = UserDelegationKey.__new__(UserDelegationKey)
        key.signed_oid, key.signed_tid, key.value = "server", "tenant", "AAAA"
        key.signed_start, key.signed_expiry = start.isoformat(), end.isoformat()
        key.signed_service, key.signed_version = "b", "2021-08-06"
        return key


def test_without_the_key_of_the_account_an_identity_signs_with_one_delegated_key() -> None:
    service: Any = DelegationService()
    vendor = AzureVendor(
        make_locations("az://lake", [], "container"),
        options={"account_name": "a"},
        lifetime_s=900,
        service=service,
    )
    for _ in range(3):
        fields = parse_qs(token(vendor, f"{vendor.storage}-{secrets.token_hex(16)}", "read"))
        assert (fields["skoid"], fields["sr"], fields["sp"]) == (["server"], ["c"], ["rl"])
    assert service.issued == 1


def test_a_removed_table_has_no_container() -> None:
    vendor = azure_vendor()
    location = vendor.new_location()
    open_store(location, options=vendor.vend(location, "write").options).put("key", b"value")
    vendor.remove(location)
    vendor.remove(location)
    root = service(vendor, vendor.server_options["account_key"])
    assert not root.get_container_client(location.removeprefix("az://")).exists()
    with pytest.raises(InvalidInputError, match="was not chosen by this server"):
        vendor.remove("az://bucket")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"account_key": "AAAA"}, AccessDeniedError, "key and the server's clock"),
        ({"endpoint": "http://127.0.0.1:9/devstoreaccount1"}, StorageError, "cannot be reached"),
    ],
)
def test_a_refusal_says_what_to_check(changes: dict[str, str], error: type[Exception], message: str) -> None:
    vendor = azure_vendor_with({**azure_vendor().server_options, **changes})
    with pytest.raises(error, match=message):
        vendor.new_location()


def test_a_damaged_key_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInputError, match="account_key") as raised:
        azure_vendor_with({"account_name": "a", "account_key": "no base64"})
    assert "no base64" not in str(raised.value)


def azure_vendor_with(options: dict[str, str]) -> Vendor:
    return make_vendor("az://lake", options=options, role_arn=None, lifetime_s=900, allow_shared=False)
