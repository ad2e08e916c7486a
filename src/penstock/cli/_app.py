"""The program `penstock`: its verbs, its help, and the way out of it."""

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from penstock.cli._checkout import checkout
from penstock.cli._compact import compact
from penstock.cli._create import create
from penstock.cli._diff import diff
from penstock.cli._doctor import doctor
from penstock.cli._head import head
from penstock.cli._info import info
from penstock.cli._ingest import sync
from penstock.cli._log import log
from penstock.cli._merge import merge
from penstock.cli._refs import branch, tag
from penstock.cli._reset import reset
from penstock.cli._vacuum import vacuum
from penstock.cli._verb import say, verb
from penstock.cli._verify import verify

_HELP = """
A data lake for training: make tables, look at them, and move in their history.

A URI is a folder, s3://bucket/path, gs://bucket/path, az://container/path or penstock://workspace/table (a name in the
catalog of this user, kept in PENSTOCK_HOME). Settings and credentials of the store are
found where its own tools find them, or are given with --option. A VERSION is 7, main@7, a tag or a branch.

\b
Exit codes:
  0    all is well
  1    a problem was found: damage, a conflict, no such table or version, a store that does not answer
  2    the command is wrong
  130  interrupted

With --json there is one document on standard output and nothing else: {"error": …} where a verb fails. What is said to
people, errors and progress, goes to standard error.
"""

app = typer.Typer(
    help=_HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)
_LOOK = (info, head, log, diff, checkout)
_CHANGE = (branch, tag, merge, reset)
_CARE = (compact, vacuum, verify, doctor)
for function in (create, sync, *_LOOK, *_CHANGE, *_CARE):
    app.command(function.__name__)(verb(function))

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, which new versions of typer carry inside


def _show_version(asked: bool) -> None:
    if asked:
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
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no failure
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = app(words or ["--help"], prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        message: str = error.format_message()  # type: ignore[attr-defined]
        message = re.sub(
            r"(unexpected extra argument)\S* \(.*", r"\1", message
        )  # an --option forgotten: maybe a secret
        say(f"{message.rstrip('.')}; see `penstock --help`")
        return 2
    except BrokenPipeError:  # the reader has seen enough, as in `penstock log … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return int(code or 0)
