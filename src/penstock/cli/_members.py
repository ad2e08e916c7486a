"""`penstock members list`, `set` and `remove`."""

from typing import Annotated

import typer

from penstock.catalog import WorkspaceAdmin, find_settings
from penstock.cli._command import CommandContext, CommandResult, command
from penstock.cli._render import render_table
from penstock.errors import InvalidInputError

Workspace = Annotated[
    str | None, typer.Option(metavar="NAME", help="The workspace; by default PENSTOCK_WORKSPACE, or that of the login.")
]
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="The name of a member, such as an email address.")]


def open_admin(workspace: str | None) -> WorkspaceAdmin:
    """The admin of a workspace; raises `InvalidInputError` if no server is configured."""
    settings = find_settings()
    if settings is None:
        raise InvalidInputError(
            "members and API keys are those of a server, and none is configured: the embedded catalog belongs to one"
            " user; run `penstock login`, or set PENSTOCK_API_URL and PENSTOCK_API_KEY"
        )
    return WorkspaceAdmin(settings, workspace)


def list_members(_: CommandContext, workspace: Workspace = None) -> CommandResult:
    """List the members of a workspace with their roles."""
    admin = open_admin(workspace)
    found = admin.members()
    members = [{"member": member, "role": role} for member, role in found.items()]
    table = render_table(("member", "role"), list(found.items())) if found else "no members yet"
    return CommandResult({"workspace": admin.workspace, "members": members}, [table])


def set_member(
    _: CommandContext,
    member: Member,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="reader, writer or admin.")],
    workspace: Workspace = None,
) -> CommandResult:
    """Add a member to a workspace, or change the role of one; their keys have it too."""
    if role not in ("reader", "writer", "admin"):
        raise InvalidInputError(f"there is no role {role!r}; there are reader, writer and admin")
    admin = open_admin(workspace)
    admin.set_member(member, role)
    document = {"workspace": admin.workspace, "member": member, "role": role}
    return CommandResult(document, [f"{member} has the role {role} in {admin.workspace}."])


def remove_member(_: CommandContext, member: Member, workspace: Workspace = None) -> CommandResult:
    """Remove a member from a workspace; their API keys are refused from then on."""
    admin = open_admin(workspace)
    admin.remove_member(member)
    return CommandResult(
        {"workspace": admin.workspace, "removed": member}, [f"Removed {member} from {admin.workspace}."]
    )


members = typer.Typer(help="List, add and remove members of a workspace.", rich_markup_mode=None)
members.command("list")(command(list_members))
members.command("set")(command(set_member))
members.command("remove")(command(remove_member))
