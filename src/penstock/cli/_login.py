"""`penstock login` and `penstock logout`."""

import getpass
import os
import sys
from typing import Annotated

import typer

from penstock.catalog import (
    Login,
    ServerSettings,
    WorkspaceAdmin,
    default_workspace,
    find_url,
    remove_login,
    write_login,
)
from penstock.cli._command import CommandContext, CommandResult
from penstock.errors import InvalidInputError


def _read_key(given: str | None) -> str:
    """Read the key before the command runs, because a prompt needs the terminal for itself."""
    if given is not None:
        raise typer.BadParameter("other users see command lines; give the key when asked, or on standard input")
    try:
        return (getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    except EOFError:
        return ""
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def login(
    _: CommandContext,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server; by default PENSTOCK_API_URL, or this machine.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="NAME", help="The workspace; by default that of the key.")
    ] = None,
    key: Annotated[str | None, typer.Option(hidden=True, callback=_read_key)] = None,
) -> CommandResult:
    """Check an API key and store it for later commands and programs of this user.

    The key is asked for, or read from standard input. PENSTOCK_API_KEY and PENSTOCK_API_URL take precedence over it.
    """
    if not key:
        raise InvalidInputError("no API key was given; an admin of the workspace makes one with `penstock keys create`")
    address, source = find_url(url)
    settings = ServerSettings(address, key, url_source=source, key_source="the input of `penstock login`")
    owner = WorkspaceAdmin(settings).whoami()
    if workspace is not None and owner.workspace not in (None, workspace):
        raise InvalidInputError(f"this key is of the workspace {owner.workspace!r}, not of {workspace!r}")
    name = workspace or owner.workspace or default_workspace()
    path = write_login(Login(settings.url, key, name))
    document = {
        "url": settings.url, "member": owner.member, "role": owner.role, "workspace": name, "file": str(path),
    }  # fmt: skip
    lines = [f"Logged in to {settings.url} as {owner.member}, {owner.role} of {name}; the key is in {path}."]
    if set_variables := [each for each in ("PENSTOCK_API_KEY", "PENSTOCK_API_URL") if os.environ.get(each)]:
        lines.append(f"{' and '.join(set_variables)} takes precedence in this environment.")
    return CommandResult(document, lines)


def logout(_: CommandContext) -> CommandResult:
    """Delete the stored API key; `penstock keys revoke` makes it useless everywhere."""
    path = remove_login()
    done = "There is no stored API key." if path is None else f"Deleted {path}."
    return CommandResult({"file": None if path is None else str(path)}, [done])
