"""Row ids: each writer claims ranges, so that no id is ever assigned to two rows."""

import os
import secrets

from penstock.format import Claim, ids_key
from penstock.history._log import create_or_read
from penstock.storage import Store
from penstock.types import RowRange

_FIRST_CLAIM = 1 << 16
_LARGEST_CLAIM = 1 << 24


class RowIds:
    """Allocates row ids for one writer; the unused rest of a claim is used by its next rows.

    A claim belongs to the process that made it: a forked child makes its own.
    """

    def __init__(self, store: Store, *, claims: int, single_writer: bool) -> None:
        self._store, self._single_writer = store, single_writer
        self.claims = claims
        """A lower bound of the number of claims in the store."""
        self._free, self._pid = RowRange(0, 0), os.getpid()
        self._next_claim = _FIRST_CLAIM

    def allocate(self, count: int) -> tuple[RowRange, ...]:
        """Ids for `count` rows, in as few ranges as possible."""
        if self._pid != os.getpid():
            self._free, self._pid = RowRange(0, 0), os.getpid()
        ranges = []
        while count:
            if self._free.count == 0:
                self._free = self._claim(max(count, self._next_claim))
                self._next_claim = min(2 * self._next_claim, _LARGEST_CLAIM)
            part = min(count, self._free.count)
            ranges.append(RowRange(self._free.start, self._free.start + part))
            self._free = RowRange(self._free.start + part, self._free.end)
            count -= part
        return tuple(ranges)

    def _claim(self, count: int) -> RowRange:
        start = self._read(self.claims - 1).end if self.claims else 0
        while True:
            mine = Claim(start, start + count, secrets.token_hex(16))
            found = create_or_read(
                self._store, ids_key(self.claims), mine, Claim.decode, single_writer=self._single_writer
            )
            self.claims += 1
            if found.write_id == mine.write_id:
                return RowRange(found.start, found.end)
            start = found.end

    def _read(self, claim: int) -> Claim:
        key = ids_key(claim)
        return Claim.decode(self._store.get(key), f"{self._store.uri}/{key}")
