"""Vacuum beside other operations, in arranged interleavings: no version that exists afterwards lacks an object."""

import os
from pathlib import Path

import penstock
from penstock.history import HeldLease
from penstock.history._leases import live_leases, store_time
from penstock.storage import open_store


def table(place: object = "memory://", rows: int = 10) -> penstock.Dataset:
    ds = penstock.create(place, {"x": "int64"})  # type: ignore[arg-type]
    ds.append({"x": list(range(rows))})
    ds.commit("first")
    return ds


def test_a_renewed_lease_lasts_from_its_renewal(tmp_path: Path) -> None:
    ds = table(tmp_path)
    store = ds._session.store
    held = HeldLease(store, ds._session.version.commit, seconds=3600.0)
    (file,) = (tmp_path / "leases").iterdir()
    long_ago = store_time(store) - 3601
    os.utime(file, (long_ago, long_ago))
    assert not live_leases(store, now_s=store_time(store))
    held.renew()
    assert len(live_leases(store, now_s=store_time(store))) == 1
    held.release()
    assert not list(open_store(str(tmp_path)).list("leases/"))
