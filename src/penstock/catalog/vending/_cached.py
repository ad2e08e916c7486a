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
from penstock.errors import PenstockError, StorageError
from penstock.storage import Credentials

_Key = tuple[str, Access]
_RENEW_AT, _USE_UNTIL = 0.5, 0.1
"""The part of the lifetime that is left when credentials are renewed, and until when they serve if that fails."""
_MAX_REQUESTS, _MAX_WAITING = 8, 16
"""A token service that does not answer must not occupy all threads of a server."""


@dataclass(frozen=True, slots=True)
class _Issued:
    """Credentials, and when they arrived by a monotonic clock."""

    credentials: Credentials
    at_s: float

    def remaining(self, now_s: float, least: float) -> Credentials | None:
        """The credentials with the rest of their lifetime; None if that is no more than the part `least`."""
        lifetime_s = self.credentials.lifetime_s
        if lifetime_s is None:
            return self.credentials
        left_s = lifetime_s - (now_s - self.at_s)
        return Credentials(self.credentials.options, left_s) if left_s > lifetime_s * least else None


class CachedVendor:
    """A vendor that issues credentials again only when half of their lifetime is over.

    Threads that want the same credentials wait for one request, and only if there are no older ones that can be used:
    a token service that fails for a while is not noticed by the clients of tables in use. The credentials of the
    `max_entries` tables that were used last are in memory.
    """

    def __init__(
        self, vendor: Vendor, *, max_entries: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.storage, self.narrow, self.server_options = vendor.storage, vendor.narrow, vendor.server_options
        self._vendor, self._max_entries, self._clock = vendor, max_entries, clock
        self._lock = threading.Lock()
        self._issued: OrderedDict[_Key, _Issued] = OrderedDict()
        self._in_flight: dict[_Key, Future[Credentials]] = {}
        self._waiting = 0

    def new_location(self) -> str:
        """A location that no table has."""
        return self._vendor.new_location()

    def check_location(self, location: str) -> None:
        """Raise `InvalidInputError` for a location that no credentials are issued for."""
        self._vendor.check_location(location)

    def vend(self, location: str, access: Access) -> Credentials:
        """Credentials for a location, new or issued before, with the rest of their lifetime.

        Raises `StorageError` if too many requests wait for the token service already.
        """
        key = (location, access)
        with self._lock:
            issued, now_s = self._issued.get(key), self._clock()
            if issued and (credentials := issued.remaining(now_s, _RENEW_AT)):
                self._issued.move_to_end(key)
                return credentials
            request = self._in_flight.get(key)
            is_first = request is None and len(self._in_flight) < _MAX_REQUESTS
            if not is_first and issued and (credentials := issued.remaining(now_s, _USE_UNTIL)):
                return credentials  # somebody else renews them, or will
            if is_first:
                request = self._in_flight[key] = Future()
            elif request is None or self._waiting >= _MAX_WAITING:
                raise StorageError("too many requests wait for credentials, so the token service is slow; retry")
            self._waiting += 1
        assert request is not None
        try:
            if is_first:
                self._issue(key, request)
            return request.result()
        except PenstockError:
            if issued and (credentials := issued.remaining(self._clock(), _USE_UNTIL)):
                return credentials
            raise
        finally:
            with self._lock:
                self._waiting -= 1

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
