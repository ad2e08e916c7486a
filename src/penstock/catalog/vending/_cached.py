"""Credentials that are issued once for all clients of a table."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import get_args

from penstock.catalog._entry import Access
from penstock.catalog.vending._vendor import Vendor
from penstock.storage import Credentials

_Key = tuple[str, Access]


@dataclass(frozen=True, slots=True)
class _Issued:
    """Credentials, and when they arrived by a monotonic clock."""

    credentials: Credentials
    at_s: float

    def remaining(self, now_s: float) -> Credentials | None:
        """The credentials with the rest of their lifetime; None if half of it is over."""
        lifetime_s = self.credentials.lifetime_s
        if lifetime_s is None:
            return self.credentials
        left_s = lifetime_s - (now_s - self.at_s)
        return Credentials(self.credentials.options, left_s) if left_s > lifetime_s / 2 else None


class CachedVendor:
    """A vendor that issues credentials again only when half of their lifetime is over.

    Threads that want the same credentials wait for one request. The credentials of the `max_entries` tables that were
    used last are in memory.
    """

    def __init__(
        self, vendor: Vendor, *, max_entries: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.storage, self.narrow, self.server_options = vendor.storage, vendor.narrow, vendor.server_options
        self._vendor, self._max_entries, self._clock = vendor, max_entries, clock
        self._lock = threading.Lock()
        self._issued: OrderedDict[_Key, _Issued] = OrderedDict()
        self._in_flight: dict[_Key, Future[Credentials]] = {}

    def new_location(self) -> str:
        """A location that no table has."""
        return self._vendor.new_location()

    def check_location(self, location: str) -> None:
        """Raise `InvalidInputError` for a location that no credentials are issued for."""
        self._vendor.check_location(location)

    def vend(self, location: str, access: Access) -> Credentials:
        """Credentials for a location, new or issued before, with the rest of their lifetime."""
        key = (location, access)
        with self._lock:
            if (issued := self._issued.get(key)) and (credentials := issued.remaining(self._clock())):
                self._issued.move_to_end(key)
                return credentials
            request = self._in_flight.get(key)
            is_first = request is None
            if request is None:
                request = self._in_flight[key] = Future()
        if is_first:
            self._issue(key, request)
        return request.result()

    def remove(self, location: str) -> None:
        """Delete the objects of a table, and forget its credentials."""
        self._vendor.remove(location)
        with self._lock:
            for access in get_args(Access):
                self._issued.pop((location, access), None)

    def _issue(self, key: _Key, request: Future[Credentials]) -> None:
        started_s = self._clock()  # before the request, so that no lifetime is overestimated
        try:
            credentials = self._vendor.vend(*key)
        except BaseException as error:
            with self._lock:
                del self._in_flight[key]
            request.set_exception(error)
            return
        with self._lock:
            self._issued[key] = _Issued(credentials, started_s)
            self._issued.move_to_end(key)
            while len(self._issued) > self._max_entries:
                self._issued.popitem(last=False)
            del self._in_flight[key]
        request.set_result(credentials)
