"""The program `penstock`: its commands, its help and its exit codes."""

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from penstock.cli._addresses import ls, mv, register, restore, rm
from penstock.cli._checkout import checkout
from penstock.cli._command import command, print_error
from penstock.cli._compact import compact
from penstock.cli._create import create
from penstock.cli._diff import diff
from penstock.cli._doctor import doctor
from penstock.cli._head import head
from penstock.cli._index import index
from penstock.cli._info import info
from penstock.cli._ingest import sync
from penstock.cli._keys import keys
from penstock.cli._log import log
from penstock.cli._login import login, logout
from penstock.cli._members import members
from penstock.cli._merge import merge
from penstock.cli._query import query
from penstock.cli._refs import branch, tag
from penstock.cli._reset import reset
from penstock.cli._search import search
from penstock.cli._serve import serve
from penstock.cli._vacuum import vacuum
from penstock.cli._verify import verify
from penstock.cli._workspaces import workspaces

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

app = typer.Typer(
    help=_HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)
_INGEST = (create, sync)
_READ = (info, head, query, search, log, diff, checkout)
_WRITE = (branch, tag, merge, reset)
_CATALOG = (ls, mv, rm, restore, register)
_MAINTAIN = (compact, vacuum, verify, doctor)
_SERVER = (login, logout)
for function in (*_INGEST, *_READ, *_WRITE, *_CATALOG, *_MAINTAIN, *_SERVER):
    app.command(function.__name__)(command(function))
app.add_typer(index, name="index")
app.add_typer(workspaces, name="workspaces")
app.add_typer(members, name="members")
app.add_typer(keys, name="keys")
app.command("serve")(command(serve, in_thread=False))

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
