"""`penstock keys list`, `create` and `revoke`."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli._command import CommandContext, CommandResult, command
from penstock.cli._members import Member, Workspace, open_admin
from penstock.cli._render import local_time, render_table
from penstock.cli._vacuum import parse_duration

_HEADERS = ("id", "member", "created", "expires", "last used", "revoked", "note")


def list_keys(_: CommandContext, workspace: Workspace = None) -> CommandResult:
    """List the API keys of a workspace; the secrets are not stored anywhere."""
    admin = open_admin(workspace)
    found = admin.keys()
    rows = [
        (key.key_id, key.member, *map(_time, (key.created_at_millis, key.expires_at_millis, key.last_used_at_millis,
         key.revoked_at_millis)), key.note)
        for key in found
    ]  # fmt: skip
    document = {"workspace": admin.workspace, "keys": [asdict(key) for key in found]}
    return CommandResult(document, [render_table(_HEADERS, rows, fold="note") if rows else "no keys yet"])


def create_key(
    _: CommandContext,
    member: Member,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it is valid: 90d, 12h; by default for ever.")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    workspace: Workspace = None,
) -> CommandResult:
    """Create an API key for a member, and show it: this once."""
    admin = open_admin(workspace)
    expires_s = None if expires is None else parse_duration(expires).total_seconds()
    text, record = admin.create_key(member, expires_s=expires_s, note=note)
    document = {"workspace": admin.workspace, "key": text, **asdict(record)}
    until = "" if record.expires_at_millis is None else f", valid until {_time(record.expires_at_millis)}"
    lines = [f"Key {record.key_id} of {member} in {admin.workspace}{until}; it is shown only now:", text]
    return CommandResult(document, lines)


def revoke_key(
    _: CommandContext,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key: its part after pen_.")],
    workspace: Workspace = None,
) -> CommandResult:
    """Revoke an API key: the server refuses it within seconds, and renews no credentials for it."""
    admin = open_admin(workspace)
    record = admin.revoke_key(key_id)
    return CommandResult({"workspace": admin.workspace, **asdict(record)}, [f"Revoked {key_id} of {record.member}."])


def _time(millis: int | None) -> str:
    return "" if millis is None else local_time(datetime.fromtimestamp(millis / 1000, UTC))


keys = typer.Typer(help="List, create and revoke API keys of a workspace.", rich_markup_mode=None)
keys.command("list")(command(list_keys))
keys.command("create")(command(create_key))
keys.command("revoke")(command(revoke_key))
