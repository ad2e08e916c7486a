"""The program `penstock`: its commands, its help and its exit codes."""

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli._command import command, print_error

_HELP = """
A data lake for training: create tables, inspect them, and work with their history.

A URI is a folder, s3://bucket/path, gs://bucket/path, az://container/path or penstock://workspace/table: a name on the
server of `penstock login` (or PENSTOCK_API_URL), and without one in your own catalog, in PENSTOCK_HOME; `penstock ls`
lists them. Credentials and settings of the store come from the environment and the files that the cloud's own tools
use, or from --option. A VERSION is 7, main@7, a tag or a branch.

\b
Exit codes:
  0    success
  1    a problem: damage, a conflict, no such table or version, a store that does not respond
  2    wrong usage
  130  interrupted

With --json, standard output is one JSON document: {"error": …} if a command fails. Errors and progress are written to
standard error.
"""

_SETTINGS: dict[str, Any] = {
    "add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False,
}  # fmt: skip
_COMMANDS = {
    "create": ("_create", "Create a table, and ingest a folder, a bucket or a file into it."),
    "sync": ("_ingest", "Ingest the new files of the sources of a table."),
    "info": ("_info", "Show a summary of a table."),
    "head": ("_head", "Show the first rows."),
    "query": ("_query", "Ask a table in SQL, and show the answer as a table or write it to a file."),
    "search": ("_search", "Search a table by words, by the vector of a row, or by both."),
    "log": ("_log", "Show the commits that led to a version, newest first."),
    "diff": ("_diff", "Show what changed from one version to another."),
    "checkout": ("_checkout", "Show the version that a number, a name or a time resolves to, and export its rows."),
    "branch": ("_refs", "List the branches of a table, or create, rename or delete one."),
    "tag": ("_refs", "List the tags of a table, or create, rename or delete one."),
    "merge": ("_merge", "Merge the changes of another branch since the common ancestor."),
    "reset": ("_reset", "Restore a branch to an older version, as a new commit."),
    "ls": ("_addresses", "List the tables of your own catalog, or of the server that you are logged in to."),
    "mv": ("_addresses", "Give a table another address."),
    "rm": ("_addresses", "Drop a table."),
    "restore": ("_addresses", "Bring back a dropped table."),
    "register": ("_addresses", "Give an existing table an address."),
    "compact": ("_compact", "Join small fragments and drop deleted rows, as a new commit."),
    "vacuum": ("_vacuum", "Remove objects that no retained version needs."),
    "verify": ("_verify", "Read every object of every version, and list what is damaged or missing."),
    "doctor": ("_doctor", "Test what a store supports."),
    "login": ("_login", "Check an API key and store it for later commands and programs of this user."),
    "logout": ("_login", "Delete the stored API key."),
    "index": ("_index", "Create, list and drop search indexes."),
    "workspaces": ("_workspaces", "List, create and drop workspaces."),
    "members": ("_members", "List, add and remove members of a workspace."),
    "keys": ("_keys", "List, create and revoke API keys of a workspace."),
    "serve": ("_serve", "Serve managed tables to a team."),
}
"""The file of each command or group of commands, which is imported when it is used, and its line in the help."""


class _LazyGroup(TyperGroup):
    """The commands, each imported when it is used; so the help of all of them imports none."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        found = getattr(import_module(f"penstock.cli.{_COMMANDS[cmd_name][0]}"), cmd_name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(**_SETTINGS)
        alone.command(cmd_name)(command(found, in_thread=cmd_name != "serve"))
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


app = typer.Typer(cls=_LazyGroup, help=_HELP, context_settings={"max_content_width": 100}, **_SETTINGS)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's class, which new versions of typer vendor


def _show_version(requested: bool) -> None:
    if requested:
        print(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without a character must not fail the command
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = app(words or ["--help"], prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        message: str = error.format_message()  # type: ignore[attr-defined]
        # An extra argument may be the value of a forgotten --option, and so a secret.
        message = re.sub(r"(unexpected extra argument)\S* \(.*", r"\1", message)
        print_error(f"{message.rstrip('.')}; see `penstock --help`")
        return 2
    except BrokenPipeError:  # the reader of the pipe has exited, as in `penstock log … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return int(code or 0)
