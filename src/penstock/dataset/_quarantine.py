"""Quarantine of a dataset: commit the rows that loaders leave out, and release them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.dataset._row_choice import Positions, RowChoice, RowIds, as_row_ids, choose_rows
from penstock.engine import BadSample
from penstock.errors import InvalidInputError
from penstock.table import Session, quarantine_rows, quarantined_rows, release_rows


class Quarantine:
    """The rows that loaders leave out; they stay in the table, where they can be repaired."""

    _session: Session

    def _commit_change(self, change: Callable[[Session], object], message: str) -> str:
        raise NotImplementedError

    def quarantine(
        self,
        where: Iterable[BadSample] | RowChoice | None = None,
        *,
        positions: Positions | None = None,
        row_ids: RowIds | Mapping[int, str] | None = None,
        reason: str | None = None,
        message: str = "",
    ) -> str:
        """Commit rows that loaders leave out from then on, and return the new version.

        `where` is `loader.stats().bad_samples`, or the rows are chosen as for `update`, with one `reason`; `row_ids`
        may map row ids to reasons. Views, `len` and `[i]` still show these rows. Concurrent writers do not conflict:
        their lists are merged. Raises `InvalidInputError` if there are uncommitted changes or no reason,
        `NotFoundError` for a row that this version does not have; bad samples that were deleted since are accepted.
        """
        samples = _bad_samples(where)

        def change(session: Session) -> None:
            if samples is not None and positions is None and row_ids is None:
                reasons = {sample.row_id: _checked(sample.row_id, sample.reason) for sample in samples}
            else:
                ids = _chosen_ids(session, where, positions, row_ids)
                given = {id: row_ids[id] if isinstance(row_ids, Mapping) else reason for id in ids}
                reasons = {id: _checked(id, why) for id, why in given.items()}
            quarantine_rows(session, reasons)

        return self._commit_change(change, message or "quarantine rows")

    def release(
        self,
        where: RowChoice | None = None,
        *,
        positions: Positions | None = None,
        row_ids: RowIds | None = None,
        message: str = "",
    ) -> str:
        """Commit that loaders read some rows again, by default all, and return the new version.

        The rows are chosen as for `update`. Raises `NotFoundError` for a row that is not quarantined.
        """

        def change(session: Session) -> None:
            ids = None
            if row_ids is not None and where is None and positions is None:
                ids = as_row_ids(row_ids).tolist()  # a listed row may be deleted
            elif where is not None or positions is not None:
                ids = _chosen_ids(session, where, positions, row_ids)
            release_rows(session, ids)

        return self._commit_change(change, message or "release rows")

    def quarantined(self) -> dict[int, str]:
        """The rows of this version that loaders leave out: reasons by row id."""
        return quarantined_rows(self._session.reader)


def _bad_samples(where: Any) -> list[BadSample] | None:
    """The bad samples of a loader, also if there are none; None for another choice of rows."""
    samples = list(where) if isinstance(where, list | tuple | set | Iterator) else [where]
    return samples if all(isinstance(sample, BadSample) for sample in samples) else None


def _chosen_ids(session: Session, where: Any, positions: Any, row_ids: Any) -> list[int]:
    """The ids of the rows that are chosen as for `update`."""
    ids = list(row_ids) if isinstance(row_ids, Mapping) else row_ids
    chosen = np.unique(choose_rows(session, where, positions=positions, row_ids=ids))
    found: list[int] = session.reader.row_ids(chosen).tolist()
    return found


def _checked(row_id: int, reason: Any) -> str:
    if not isinstance(reason, str):
        raise InvalidInputError(f"row {row_id} needs a reason, a text such as reason='blurred', not {reason!r}")
    # the text of an exception may hold file names that are not Unicode
    return reason.encode(errors="backslashreplace").decode()
