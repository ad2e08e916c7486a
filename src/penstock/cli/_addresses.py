"""`penstock ls`, `mv`, `rm`, `restore` and `register`: addresses of tables in the catalog."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

import penstock
from penstock.catalog import Catalog, CatalogEntry, TableAddress, is_table_address, open_catalog
from penstock.cli._command import CommandContext, CommandResult
from penstock.cli._render import local_time, render_table
from penstock.dataset import purge
from penstock.errors import InvalidInputError
from penstock.history import open_table
from penstock.storage import open_store

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="penstock://workspace/table")]


def ls(
    context: CommandContext,  # noqa: ARG001
    workspace: Annotated[str | None, typer.Argument(metavar="WORKSPACE", help="Only tables of this workspace.")] = None,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="List the tables that `penstock restore` can bring back.")
    ] = False,
) -> CommandResult:
    """List the tables of your own catalog, or of the server that you are logged in to."""
    if workspace is not None and "/" in workspace:
        raise InvalidInputError(f"{workspace!r} is not the name of a workspace; write `penstock ls WORKSPACE`")
    entries = open_catalog().tables(workspace, dropped=dropped)
    document = {"workspace": workspace, "tables": [_document(entry) for entry in entries]}
    if not entries:
        place = "" if workspace is None else f" in the workspace {workspace}"
        return CommandResult(document, [f"no dropped tables{place}" if dropped else f"no tables{place} yet"])
    headers = ["address", "created", *(["dropped", "restore until"] if dropped else []), "location"]
    rows = [[str(entry.address), *map(local_time, _times(entry).values()), entry.uri] for entry in entries]
    return CommandResult(document, [render_table(headers, rows, fold="location")])


def mv(
    context: CommandContext,  # noqa: ARG001
    old: Annotated[str, typer.Argument(metavar="OLD", help="The address of a table: penstock://workspace/table.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new address.")],
) -> CommandResult:
    """Give a table another address; its files stay where they are, so that running jobs do not notice."""
    source, target = parse_address(old), parse_address(new)
    entry = open_catalog().rename(source, target)
    document = {"old": str(source), **_document(entry)}
    return CommandResult(document, [f"Renamed {source} to {target}; the table stays in {entry.uri}."])


def rm(
    context: CommandContext,
    address: Address,
    now: Annotated[
        bool, typer.Option("--now", help="Delete the table with all its versions at once; it cannot be restored.")
    ] = False,
) -> CommandResult:
    """Drop a table; for seven days, `penstock restore` can bring it back, and then its files are deleted.

    The files of a table that was registered are not deleted, only its address is removed.
    """
    catalog, name = open_catalog(), parse_address(address)
    if now:
        if not isinstance(catalog, Catalog):
            raise InvalidInputError(
                f"{catalog} deletes dropped tables itself; leave out --now, or delete the objects at once in Python,"
                f' with penstock.delete("{name}")'
            )
        entry = catalog.find(name)
        _delete(context, catalog, entry)
    else:
        entry = catalog.drop(name)
    failed = purge(catalog, storage_options=context.storage_options) if isinstance(catalog, Catalog) else {}
    reasons = {uri: context.redact(str(error)) for uri, error in failed.items()}
    document = {**_document(entry), "deleted": now and entry.owned, "not_deleted": reasons}
    notes = [
        f"A table dropped earlier could not be deleted from {uri} ({reason}); the next `penstock rm` tries again."
        for uri, reason in reasons.items()
    ]
    return CommandResult(document, [*_removed_lines(entry, now=now), *notes])


def restore(context: CommandContext, address: Address) -> CommandResult:  # noqa: ARG001
    """Bring back a dropped table; of several with this address, the one that was dropped last."""
    entry = open_catalog().restore(parse_address(address))
    return CommandResult(_document(entry), [f"Restored {entry.address}; the table is in {entry.uri}."])


def register(
    context: CommandContext,
    address: Address,
    uri: Annotated[str, typer.Argument(metavar="URI", help="A folder, or s3://, gs:// or az:// with a path.")],
) -> CommandResult:
    """Give an existing table an address."""
    name = parse_address(address)
    if is_table_address(uri):
        raise InvalidInputError(f"{uri} is an address already; rename the table with `penstock mv {uri} {name}`")
    info = open_table(open_store(uri, options=context.storage_options))
    entry = open_catalog().register(name, uri, table_id=info.id)
    return CommandResult(_document(entry), [f"Registered {entry.address} for the table in {entry.uri}."])


def parse_address(text: str) -> TableAddress:
    """Parse an address; raises `InvalidInputError` that shows how to write it."""
    if "://" not in text and text.count("/") == 1 and all(text.split("/")):
        raise InvalidInputError(f"{text!r} may be a folder or a table of a workspace; write penstock://{text}")
    return TableAddress.parse(text)


def _delete(context: CommandContext, catalog: Catalog, entry: CatalogEntry) -> None:
    address, options = str(entry.address), context.storage_options
    if entry.owned and penstock.exists(address, storage_options=options):
        penstock.delete(address, storage_options=options)
    else:
        catalog.remove(entry.address)


def _removed_lines(entry: CatalogEntry, *, now: bool) -> Iterator[str]:
    if now:
        yield f"Deleted {entry.address}." if entry.owned else f"Removed {entry.address} from the catalog."
    else:
        until = local_time(_times(entry)["restore_until"])
        yield f"Dropped {entry.address}; until {until}, `penstock restore {entry.address}` brings it back."
    if not entry.owned:
        yield f"The files of the table stay in {entry.uri}."


def _document(entry: CatalogEntry) -> dict[str, Any]:
    times = {key: time.isoformat() for key, time in _times(entry).items()}
    return {"address": str(entry.address), "uri": entry.uri, "table_id": entry.table_id, **times}


def _times(entry: CatalogEntry) -> dict[str, datetime]:
    """When the table was created and dropped, and until when it can be restored, as far as they apply."""
    times = {"created": entry.created_us, "dropped": entry.dropped_us, "restore_until": entry.purge_us}
    return {key: datetime.fromtimestamp(time / 1e6, UTC) for key, time in times.items() if time is not None}
