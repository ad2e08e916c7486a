"""`penstock workspaces list`, `create` and `drop`."""

from typing import Annotated

import typer

from penstock.catalog import open_catalog
from penstock.cli._command import CommandContext, CommandResult, command
from penstock.cli._members import open_admin

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a workspace.")]


def list_workspaces(_: CommandContext) -> CommandResult:
    """List the workspaces that you may see, of the server or in your own catalog."""
    found = open_catalog().workspaces()
    return CommandResult({"workspaces": found}, found or ["no workspaces yet"])


def create_workspace(_: CommandContext, name: Name) -> CommandResult:
    """Create a workspace, as an admin of the server; then add members to it."""
    open_admin(name).create()
    return CommandResult({"workspace": name}, [f"Created the workspace {name}."])


def drop_workspace(_: CommandContext, name: Name) -> CommandResult:
    """Remove a workspace without tables, with its members and keys, as an admin of the server."""
    open_admin(name).drop()
    return CommandResult({"dropped": name}, [f"Dropped the workspace {name}."])


workspaces = typer.Typer(help="List, create and drop workspaces.", rich_markup_mode=None)
workspaces.command("list")(command(list_workspaces))
workspaces.command("create")(command(create_workspace))
workspaces.command("drop")(command(drop_workspace))
