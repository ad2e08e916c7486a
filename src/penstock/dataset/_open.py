"""Make a table, open one, and what can be done with a whole table."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from penstock.catalog import Address, Catalog, is_address
from penstock.dataset._dataset import Dataset
from penstock.dataset._versions import find
from penstock.errors import AlreadyExistsError, NotFoundError, PenstockWarning
from penstock.format import LOG_PREFIX, TABLE_KEY, Schema, SchemaLike, Snapshot, make_schema, new_id
from penstock.history import MAIN, Note, Refs, create_table, open_table, open_version
from penstock.storage import Store, open_store, probe
from penstock.table import AllowedLinks, Containers, Report, Session, Verifier, author

Place = str | os.PathLike[str] | Store
"""Where a table is: a path, a URI, or a store that is open already."""


def create(
    uri: Place,
    schema: SchemaLike | None = None,
    *,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
    message: str = "",
) -> Dataset:
    """Make a new table in a folder or a bucket.

    Without a schema, the columns are found from the first rows that are appended. `options` are settings of the store
    (see `open_store`); `links` allows containers that link columns point into. The store is asked to prove that it can
    keep two writers apart; where it cannot, a warning says so and the table takes one writer at a time.
    """
    fields = make_schema(schema if schema is not None else {})
    with _named(uri) as place:
        return _create(open_place(place, options), fields, links, message)


def _create(store: Store, fields: Schema, links: AllowedLinks, message: str) -> Dataset:
    if _is_table(store):
        raise AlreadyExistsError(f"{store.uri} is a table already; load it, or choose another place")
    found = probe(store)
    if not found.create_only:
        warnings.warn(
            f"{store.uri}: {found.detail} Only one process at a time may write this table.",
            PenstockWarning,
            stacklevel=3,
        )
    note = Note(message, author(), new_id())
    info, version = create_table(store, Snapshot(fields), single_writer=not found.create_only, note=note)
    return Dataset(Session(store, info, version, branch=MAIN, links=links))


def load(
    uri: Place,
    *,
    version: int | str | None = None,
    tag: str | None = None,
    branch: str | None = None,
    as_of: datetime | str | None = None,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
) -> Dataset:
    """Open a table: the newest version of the branch main, or of another.

    `version` is a number, `branch@number`, a tag or a branch; `as_of` is a time, for what was newest then. A version, a
    tag and a time are opened to be read; a branch can be changed.
    """
    store = open_place(uri, options)
    info = open_table(store)
    home = Refs(store, info).branch(branch) if branch is not None else info.main
    number = version if isinstance(version, int) and tag is None and as_of is None else None
    session = Session(
        store, info, open_version(store, home, number), branch=branch or MAIN, links=links, pinned=number is not None
    )
    if number is None and (version, tag, as_of) != (None, None, None):
        commit, name, pinned = find(session, version=version, tag=tag, branch=branch, as_of=as_of)
        session.checkout(commit, branch=name, pinned=pinned)
    return Dataset(session)


def exists(uri: Place, *, options: Mapping[str, str] | None = None) -> bool:
    """Whether there is a table; a store that does not answer is an error, and not a no."""
    try:
        return _is_table(open_place(uri, options))
    except NotFoundError:  # an address that the catalog does not know
        return False


def delete(uri: Place, *, options: Mapping[str, str] | None = None) -> None:
    """Remove a table with all its versions; refuses a place that is not a table."""
    store = open_place(uri, options)
    open_table(store)
    store.delete([TABLE_KEY])
    store.delete([item.key for prefix in _OWN_PREFIXES for item in store.list(prefix)])
    if not isinstance(uri, Store) and is_address(text := os.fspath(uri)):
        Catalog().remove(Address.parse(text))


def verify(
    uri: Place,
    *,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Read every byte of every version back and name what is damaged; with `links` given, linked objects too."""
    store = open_place(uri, options)
    containers = None if links is None else Containers(links)
    if not _is_table(store) and not any(True for _ in store.list(LOG_PREFIX)):
        raise NotFoundError(f"{store.uri} is not a table: there is nothing of one in it")
    return Verifier(store, links=containers, progress=progress or (lambda _: None)).run()


_OWN_PREFIXES = (
    "log/", "refs/", "ids/", "snapshots/", "manifests/", "data/", "blobs/", "index/", "views/", "ingest/", "leases/",
    "intents/", "vacuums/",
)  # fmt: skip


def open_place(place: Place, options: Mapping[str, str] | None) -> Store:
    """The store at a place; a `penstock://` address is looked up in the catalog."""
    if isinstance(place, Store):
        return place
    if is_address(text := os.fspath(place)):
        place = Catalog().find(Address.parse(text)).uri
    return open_store(place, options=options)


@contextmanager
def _named(place: Place) -> Iterator[Place]:
    """The place of a table to be made; an address gets its place in the catalog, and keeps it if the table is made."""
    if isinstance(place, Store) or not is_address(text := os.fspath(place)):
        yield place
        return
    catalog, address = Catalog(), Address.parse(text)
    known = any(entry.address == address for entry in catalog.tables(address.workspace))
    entry = catalog.place(address)
    try:
        yield entry.uri
    except AlreadyExistsError:  # the table is there, whoever made it
        raise
    except BaseException:
        if not known:
            catalog.remove(address)
        raise


def _is_table(store: Store) -> bool:
    try:
        store.head(TABLE_KEY)
    except NotFoundError:
        return False
    return True
