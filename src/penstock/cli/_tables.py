"""`penstock tables`."""

from typing import Annotated

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult
from penstock.cli._members import Workspace
from penstock.cli._render import local_time, render_table


def tables(
    _: CommandContext,
    workspace: Workspace = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="List dropped tables that can be restored.")] = False,
) -> CommandResult:
    """List the tables of a workspace, in your own catalog or on the server that you are logged in to."""
    client = penstock.Client(workspace=workspace)
    found = client.list_tables(dropped=dropped)
    time = "restorable until" if dropped else "created"
    rows = [(info.name, local_time(info.restorable_until or info.created), info.uri) for info in found]
    entries = [
        {
            "name": info.name,
            "address": info.address,
            "uri": info.uri,
            "created": info.created.isoformat(),
            "dropped": info.dropped and info.dropped.isoformat(),
            "restorable_until": info.restorable_until and info.restorable_until.isoformat(),
        }
        for info in found
    ]
    nothing = "no dropped tables" if dropped else "no tables yet"
    table = render_table(("name", time, "uri"), rows, truncate=("uri",)) if rows else nothing
    return CommandResult({"workspace": client.workspace, "tables": entries}, [table])
