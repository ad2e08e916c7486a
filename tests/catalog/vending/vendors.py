"""Vendors on the servers of the tests."""

import secrets
from typing import Any

from penstock.catalog.vending import Vendor, make_vendor
from tests.servers import new_location, sts_server


def s3_vendor(storage: str = "teams/lake", **changes: Any) -> Vendor:
    """A vendor of SeaweedFS, which enforces session policies."""
    server = sts_server()
    arguments: dict[str, Any] = {"role_arn": server.role_arn, "lifetime_s": 900, "allow_shared": False}
    return make_vendor(f"s3://{server.bucket}/{storage}", options=server.options, **(arguments | changes))


def azure_vendor(**changes: Any) -> Vendor:
    """A vendor of azurite, on which each table has a container of its own."""
    arguments: dict[str, Any] = {"role_arn": None, "lifetime_s": 900, "allow_shared": False}
    storage = f"az://lake{secrets.token_hex(4)}"
    return make_vendor(storage, options=new_location("az").options, **(arguments | changes))
