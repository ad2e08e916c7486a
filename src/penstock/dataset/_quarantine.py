"""Quarantine of a dataset: commit the rows that loaders leave out, and release them."""

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

import numpy as np

from penstock.engine import BadSample
from penstock.errors import InvalidInputError, NotFoundError
from penstock.table import Session, is_position, quarantine_rows, quarantined_rows, release_rows


class Quarantine:
    """The rows that loaders leave out; they stay in the table, where they can be repaired."""

    _session: Session

    def _commit_change(self, change: Callable[[Session], object], message: str) -> str:
        raise NotImplementedError

    def quarantine(
        self,
        rows: Iterable[BadSample] | Mapping[int, str] | int | Iterable[int],
        *,
        reason: str | None = None,
        message: str = "",
    ) -> str:
        """Commit rows that loaders leave out from then on, and return the new version.

        `rows` is `loader.stats().bad_samples`, or reasons by row id, or row ids with one `reason`. Views, `len` and
        `[i]` still show these rows. Concurrent writers do not conflict: their lists are merged. Raises
        `InvalidInputError` if there are uncommitted changes or no reason, `NotFoundError` for a row id that this
        version does not have; bad samples that were deleted since are accepted.
        """
        reasons, must_exist = _parse(rows, reason)

        def change(session: Session) -> None:
            found = session.reader.positions_of(np.array(must_exist, np.int64))
            if (found < 0).any():
                raise NotFoundError(f"there is no row with id {must_exist[int(found.argmin())]} in this version")
            quarantine_rows(session, reasons)

        return self._commit_change(change, message or f"quarantine {len(reasons)} rows")

    def release(self, rows: int | Iterable[int] | None = None, *, message: str = "") -> str:
        """Commit that loaders read these rows again, by default all, and return the new version.

        Raises `NotFoundError` for a row that is not quarantined.
        """
        ids = None if rows is None else [_row_id(id) for id in _as_list(rows)]
        return self._commit_change(lambda session: release_rows(session, ids), message or "release rows")

    def quarantined(self) -> dict[int, str]:
        """The rows of this version that loaders leave out: reasons by row id."""
        return quarantined_rows(self._session.reader)


def _parse(rows: Any, reason: str | None) -> tuple[dict[int, str], list[int]]:
    """The reasons by row id, and the row ids that the version must have."""
    reasons, must_exist = {}, []
    for row in _as_list(rows):
        why: Any = rows[row] if isinstance(rows, Mapping) else reason
        if isinstance(row, BadSample):
            id, why = row.row_id, row.reason
        else:
            must_exist.append(id := _row_id(row))
        if not isinstance(why, str):
            raise InvalidInputError(f"row {id} needs a reason, a text such as reason='blurred', not {why!r}")
        # the text of an exception may hold file names that are not Unicode
        reasons[id] = why.encode(errors="backslashreplace").decode()
    return reasons, must_exist


def _row_id(given: Any) -> int:
    if not isinstance(given, Integral) or isinstance(given, bool) or not 0 <= int(given) < 1 << 63:
        raise InvalidInputError(f"rows are quarantined by row id, a whole number below 2^63, not by {given!r}")
    return int(given)


def _as_list(rows: Any) -> list[Any]:
    return [rows] if is_position(rows) else list(rows)
