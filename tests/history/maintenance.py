"""Maintenance through an open handle: it may be behind, and its store may be a wrapper or in memory."""

from datetime import timedelta
from typing import Any

import penstock
from penstock.table import compact as compact_fragments


def compact(ds: penstock.Dataset) -> str:
    """What `penstock.compact` does, from the version that the handle is at."""
    compact_fragments(ds._session)
    return ds.commit("compact")


def vacuum(ds: penstock.Dataset, **options: Any) -> penstock.VacuumResult:
    """`penstock.vacuum` of the handle's store, by default without any retention."""
    return penstock.vacuum(ds._session.store, **{"older_than": timedelta(0), **options})
