"""A table lives on vended credentials alone, and those for reading change nothing."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.catalog.vending import CachedVendor, Vendor, make_vendor
from penstock.errors import AccessDeniedError
from penstock.storage import open_store
from tests.catalog.vending.vendors import azure_vendor, s3_vendor

# Those who only read cannot write a lease.
pytestmark = pytest.mark.filterwarnings("ignore:.*no lease protects:penstock.errors.PenstockWarning")

VENDORS: dict[str, Callable[[], Vendor]] = {"s3": s3_vendor, "az": azure_vendor}


@pytest.fixture(params=VENDORS)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return CachedVendor(VENDORS[request.param]())


def test_a_table_is_made_changed_streamed_cleaned_and_deleted(vendor: Vendor) -> None:
    uri = vendor.new_location()
    options = vendor.vend(uri, "write").options
    ds = penstock.create(uri, {"x": penstock.Tensor("int64"), "name": str}, storage_options=options)
    for first in (0, 100):
        ds.append({"x": np.arange(first, first + 100), "name": [f"row {i}" for i in range(first, first + 100)]})
        ds.commit()
    ds.delete(positions=[0])
    ds.commit()
    ds.branches.create("draft")
    ds.tags.create("v1")
    penstock.compact(uri, storage_options=options)
    penstock.vacuum(uri, older_than=timedelta(0), storage_options=options)
    assert streamed(uri, vendor) == list(range(1, 200))
    penstock.delete(uri, storage_options=options)
    assert not penstock.exists(uri, storage_options=options)


def test_credentials_for_reading_read_and_write_nothing(vendor: Vendor) -> None:
    uri = vendor.new_location()
    writing = penstock.create(uri, {"x": penstock.Tensor("int64")}, storage_options=vendor.vend(uri, "write").options)
    append(writing, 10)
    options = vendor.vend(uri, "read").options
    assert streamed(uri, vendor) == list(range(10))
    reading = penstock.load(uri, storage_options=options)
    assert isinstance(reading, penstock.Dataset)
    with pytest.raises(AccessDeniedError):
        append(reading, 10)
    with pytest.raises(AccessDeniedError):
        reading.tags.create("mine")
    with pytest.raises(AccessDeniedError):
        penstock.delete(uri, storage_options=options)
    assert streamed(uri, vendor) == list(range(10))


def test_credentials_of_one_table_do_not_open_another(vendor: Vendor) -> None:
    mine, other = vendor.new_location(), vendor.new_location()
    penstock.create(other, {"x": int}, storage_options=vendor.vend(other, "write").options)
    options = vendor.vend(mine, "write").options
    with pytest.raises(AccessDeniedError):
        penstock.load(other, storage_options=options)
    with pytest.raises(AccessDeniedError):
        penstock.create(vendor.new_location(), {"x": int}, storage_options=options)


def test_a_removed_table_leaves_nothing_and_its_neighbour_stays(vendor: Vendor) -> None:
    mine, other = vendor.new_location(), vendor.new_location()
    for uri in (mine, other):
        penstock.create(uri, {"x": int}, storage_options=vendor.vend(uri, "write").options)
    vendor.remove(mine)
    vendor.remove(mine)  # a purge that was interrupted is repeated
    if not mine.startswith("az:"):  # there its container is gone too
        assert list(open_store(mine, options=vendor.server_options).list()) == []
    assert penstock.exists(other, storage_options=vendor.server_options)


def test_tables_of_folders_need_no_credentials(tmp_path: Path) -> None:
    vendor = make_vendor(str(tmp_path), options={}, role_arn=None, lifetime_s=60, allow_shared=False)
    mine, other = vendor.new_location(), vendor.new_location()
    assert Path(mine).parent == tmp_path
    credentials = vendor.vend(mine, "write")
    assert (credentials.options, credentials.lifetime_s, vendor.narrow) == ({}, None, True)
    for uri in (mine, other):
        penstock.create(uri, {"x": int}, storage_options=credentials.options)
    vendor.remove(mine)
    vendor.remove(mine)
    assert [path.name for path in tmp_path.iterdir()] == [Path(other).name]
    shutil.rmtree(other)


def append(ds: penstock.Dataset, rows: int) -> None:
    ds.append({"x": np.arange(rows)})
    ds.commit()


def streamed(uri: str, vendor: Vendor) -> list[int]:
    """The values of a table as a loader gives them, by credentials for reading."""
    ds = penstock.load(uri, storage_options=vendor.vend(uri, "read").options)
    loader = ds.select(["x"]).numpy(batch_size=16)
    return sorted(int(value) for batch in loader for value in batch["x"])
