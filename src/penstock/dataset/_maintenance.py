"""Maintenance of a table: compact its files, remove what no version needs."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from penstock.dataset._locations import UriLike, open_location
from penstock.dataset._open import load
from penstock.errors import InvalidInputError
from penstock.history import MAIN, Vacuum, VacuumResult, open_table
from penstock.query import carry_indexes, extend_indexes
from penstock.table import compact as compact_fragments

RETENTION = timedelta(days=30)


def compact(
    uri: UriLike, *, branch: str = MAIN, message: str = "", storage_options: Mapping[str, str] | None = None
) -> str:
    """Merge small fragments, drop deleted rows from storage and add new rows to indexes; return the new version.

    Rows, their order and their ids do not change, and readers are not disturbed. Raises `ConflictError` if another
    writer changed the same fragments meanwhile; call it again.
    """
    session = load(uri, branch=branch, storage_options=storage_options)._session
    session.check_writable()
    before = session.reader
    with before.missing_as_expired():
        if compact_fragments(session):
            carry_indexes(before, session)
        extend_indexes(session, lambda _done, _rows: None)
    session.commit(message or "compact")
    return session.version_name


def vacuum(
    uri: UriLike,
    *,
    older_than: timedelta = RETENTION,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> VacuumResult:
    """Delete objects that no retained version needs, and report what was deleted, or with `dry_run` what would be.

    Retained are the newest version of each branch, versions that were current less than `older_than` ago, and those
    with a tag or a lease. Raises `InvalidInputError` for a negative `older_than`.
    """
    if older_than < timedelta(0):
        raise InvalidInputError("older_than cannot be negative")
    store = open_location(uri, storage_options)
    run = Vacuum(store, open_table(store), older_than.total_seconds(), progress or (lambda _: None))
    return run.run(dry_run=dry_run)
