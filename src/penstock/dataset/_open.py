"""Create, load, verify and delete whole tables."""

import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import overload

from penstock.dataset._dataset import Dataset
from penstock.dataset._locations import (
    UriLike,
    address_of,
    delete_objects,
    has_table,
    managed_table,
    open_entry,
    open_location,
    reserved_location,
)
from penstock.dataset._purge import delete_managed
from penstock.dataset._saved_views import open_view
from penstock.dataset._versions import find
from penstock.dataset._view import View
from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError, PenstockWarning
from penstock.format import LOG_PREFIX, Schema, SchemaLike, Snapshot, make_schema, new_id
from penstock.history import MAIN, CommitInfo, Refs, create_table, open_table, open_version
from penstock.storage import Store, probe
from penstock.table import AllowedLinks, LinkContainers, Session, Verifier, VerifyReport, author


def create(
    uri: UriLike,
    schema: SchemaLike | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
    message: str = "",
) -> Dataset:
    """Create an empty table in a folder or a bucket.

    Without a schema, columns are inferred from the first rows appended. `storage_options` configure the store (see
    `penstock.storage.open_store`); `links` allows containers that link columns point into. The store's conditional
    writes are probed first: where they do not work, a warning says so and the table allows a single writer only.
    Raises `AlreadyExistsError` if there is a table.
    """
    fields = make_schema(schema if schema is not None else {})
    with reserved_location(uri, storage_options) as store:
        return Dataset(_create(store, fields, links, message), address_of(uri))


def _create(store: Store, fields: Schema, links: AllowedLinks, message: str) -> Session:
    if has_table(store):
        raise AlreadyExistsError(f"{store.uri} is a table already; load it, or choose another location")
    found = probe(store)
    if not found.create_only:
        warnings.warn(
            f"{store.uri}: {found.detail} Only one process at a time may write this table.",
            PenstockWarning,
            stacklevel=3,
        )
    commit_info = CommitInfo(message, author(), new_id())
    info, version = create_table(store, Snapshot(fields), single_writer=not found.create_only, commit_info=commit_info)
    return Session(store, info, version, branch=MAIN, links=links)


@overload
def load(
    uri: UriLike,
    *,
    version: int | str | None = None,
    tag: str | None = None,
    branch: str | None = None,
    as_of: datetime | str | None = None,
    view: None = None,
    storage_options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
) -> Dataset: ...
@overload
def load(
    uri: UriLike, *, view: str, storage_options: Mapping[str, str] | None = None, links: AllowedLinks = False
) -> View: ...
def load(
    uri: UriLike,
    *,
    version: int | str | None = None,
    tag: str | None = None,
    branch: str | None = None,
    as_of: datetime | str | None = None,
    view: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
) -> Dataset | View:
    """Open a table at the newest version of the branch main, or at another version.

    `version` is a number, `branch@number`, a tag or a branch; `as_of` is a time, for the version that was newest then.
    A branch is writable; a version, a tag or a time is read-only. `view` is the name of a saved view, which has a
    version of its own: the same rows in the same order, wherever it is opened. Raises `NotFoundError` if there is no
    such table, version or view, and `StorageError` if the store does not answer.
    """
    store = open_location(uri, storage_options)
    if view is not None:
        if (version, tag, branch, as_of) != (None, None, None, None):
            raise InvalidInputError(f"the view {view!r} has a version of its own; pass no other one")
        return View._of(open_view(store, view, links))
    info = open_table(store)
    home = Refs(store, info).branch(branch) if branch is not None else info.main
    number = version if isinstance(version, int) and tag is None and as_of is None else None
    session = Session(
        store, info, open_version(store, home, number), branch=branch or MAIN, links=links, pinned=number is not None
    )
    if number is None and (version, tag, as_of) != (None, None, None):
        commit, name, pinned = find(session, version=version, tag=tag, branch=branch, as_of=as_of)
        session.checkout(commit, branch=name, pinned=pinned)
    return Dataset(session, address_of(uri))


def exists(uri: UriLike, *, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether there is a table. Raises `StorageError` if the store does not answer."""
    try:
        return has_table(open_location(uri, storage_options))
    except NotFoundError:  # an address without a catalog entry
        return False


def delete(uri: UriLike, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Delete a table with all its versions, and no other files. Raises `NotFoundError` if there is none."""
    table = managed_table(uri)
    if table is None:
        store = open_location(uri, storage_options)
        open_table(store)
        delete_objects(store)
        return
    entry = table.find()
    store = open_entry(entry, storage_options)
    open_table(store)
    delete_managed(table.catalog, entry, store)


def verify(
    uri: UriLike,
    *,
    storage_options: Mapping[str, str] | None = None,
    links: AllowedLinks | None = None,
    progress: Callable[[VerifyReport], None] | None = None,
) -> VerifyReport:
    """Read back every byte of every version and report damaged objects; with `links`, linked objects too."""
    store = open_location(uri, storage_options)
    containers = None if links is None else LinkContainers(links)
    if not has_table(store) and not any(True for _ in store.list(LOG_PREFIX)):
        raise NotFoundError(f"{store.uri} is not a table: it has no log")
    return Verifier(store, links=containers, progress=progress or (lambda _: None)).run()
