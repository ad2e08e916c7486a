"""The program `penstock`: its verbs, its help, and the way out of it."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from penstock.cli._create import create
from penstock.cli._doctor import doctor
from penstock.cli._head import head
from penstock.cli._info import info
from penstock.cli._log import log
from penstock.cli._verb import say, verb
from penstock.cli._verify import verify

_HELP = """
A data lake for training: make tables, and look at them.

A URI is a folder, s3://bucket/path, gs://bucket/path or az://container/path. Settings and credentials of the store are
found where its own tools find them, or are given with --option.

Exit codes: 0 all is well; 1 a problem was found (damage, no table there, a store that does not answer); 2 the command
is wrong; 130 interrupted. With --json one document is all there is on standard output, {"error": …} where a verb fails.
"""

app = typer.Typer(name="penstock", help=_HELP, add_completion=False, pretty_exceptions_enable=False)
for function in (create, info, head, log, verify, doctor):
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
        say(f"{error.format_message().rstrip('.')}; see `penstock --help`")  # type: ignore[attr-defined]
        return 2
    except BrokenPipeError:  # the reader has seen enough, as in `penstock log … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return int(code or 0)
