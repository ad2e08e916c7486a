"""Read many ranges of an object with few requests."""

from bisect import bisect_right
from collections.abc import Sequence

from penstock.storage._store import Store
from penstock.storage._threads import thread_map
from penstock.types import ByteRange


def coalesce(ranges: Sequence[ByteRange], *, max_gap_bytes: int, max_request_bytes: int) -> list[ByteRange]:
    """Merge ranges that are close enough to be cheaper as one GET.

    Returns requests ordered by start. Each range lies inside one of them, and none is longer than `max_request_bytes`
    unless a single range is. Empty ranges get no request.
    """
    requests: list[ByteRange] = []
    for item in sorted(item for item in ranges if item.length):
        if requests:
            last = requests[-1]
            merged = ByteRange(last.start, max(last.end, item.end))
            if item.end <= last.end or (item.start - last.end <= max_gap_bytes and merged.length <= max_request_bytes):
                requests[-1] = merged
                continue
        requests.append(item)
    return requests


def get_ranges(
    store: Store,
    key: str,
    ranges: Sequence[ByteRange],
    *,
    etag: str | None = None,
    max_gap_bytes: int = 256 * 1024,
    max_request_bytes: int = 8 * 1024 * 1024,
    max_workers: int = 8,
) -> list[memoryview]:
    """Read ranges of one object with few concurrent requests; the views are in the order of `ranges`."""
    requests = coalesce(ranges, max_gap_bytes=max_gap_bytes, max_request_bytes=max_request_bytes)
    parts = thread_map(lambda part: store.get(key, byte_range=part, etag=etag), requests, max_workers=max_workers)
    starts = [request.start for request in requests]

    def view(item: ByteRange) -> memoryview:
        if not item.length:
            return memoryview(b"")
        index = bisect_right(starts, item.start) - 1  # ends ascend with starts, so this request covers the item
        return parts[index][item.start - starts[index] : item.end - starts[index]]

    return [view(item) for item in ranges]
