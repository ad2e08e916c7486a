"""Coalesced range reads."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.storage import coalesce, get_ranges, open_store
from penstock.testing import CountingStore
from penstock.types import ByteRange

RANGES = st.lists(
    st.builds(lambda start, length: ByteRange(start, start + length), st.integers(0, 500), st.integers(0, 60))
)


def covers(request: ByteRange, item: ByteRange) -> bool:
    return request.start <= item.start and item.end <= request.end


@given(ranges=RANGES, max_gap_bytes=st.integers(0, 50), max_request_bytes=st.integers(1, 200))
def test_coalesce(ranges: list[ByteRange], max_gap_bytes: int, max_request_bytes: int) -> None:
    requests = coalesce(ranges, max_gap_bytes=max_gap_bytes, max_request_bytes=max_request_bytes)
    assert requests == sorted(requests)
    assert all(any(covers(request, item) for request in requests) for item in ranges if item.length)
    assert all(request.length <= max_request_bytes or request in ranges for request in requests)
    needed = {at for item in ranges for at in range(item.start, item.end)}
    for request in requests:
        assert {request.start, request.end - 1} <= needed
        waste = "".join("x" if at in needed else " " for at in range(request.start, request.end))
        assert " " * (max_gap_bytes + 1) not in waste
    for left, right in pairwise(requests):
        assert right.start - left.end > max_gap_bytes or right.end - left.start > max_request_bytes


@given(ranges=RANGES, max_gap_bytes=st.integers(0, 50), max_request_bytes=st.integers(1, 200))
def test_get_ranges_returns_views_in_request_order(
    ranges: list[ByteRange], max_gap_bytes: int, max_request_bytes: int
) -> None:
    data = bytes(at % 251 for at in range(560))
    store = open_store("memory://")
    store.put("k", data)
    views = get_ranges(store, "k", ranges, max_gap_bytes=max_gap_bytes, max_request_bytes=max_request_bytes)
    assert views == [data[item.start : item.end] for item in ranges]


def test_nearby_ranges_are_one_request() -> None:
    store = CountingStore(open_store("memory://"))
    store.put("k", bytes(10_000_000))
    get_ranges(store, "k", [ByteRange(at, at + 1000) for at in (5000, 0, 2000)])
    assert (store.requests["get"], store.bytes["get"]) == (1, 6000)
    store.reset()
    get_ranges(store, "k", [ByteRange(0, 10), ByteRange(5_000_000, 5_000_010), ByteRange(7, 7)])
    assert (store.requests["get"], store.bytes["get"]) == (2, 20)


def test_range_past_the_end_is_corrupt() -> None:
    store = open_store("memory://")
    store.put("k", b"0123")
    with pytest.raises(CorruptError, match="4 bytes"):
        get_ranges(store, "k", [ByteRange(0, 2), ByteRange(2, 5)])
