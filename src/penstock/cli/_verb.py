"""What all verbs share: their options, how they answer, how they fail, and how they are interrupted."""

import inspect
import json as jsonlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from penstock.errors import InvalidInputError, LinkNotAllowed, PenstockError, PenstockWarning, UnsupportedFormat

Uri = Annotated[str, typer.Argument(metavar="URI", help="A folder, or s3://, gs:// or az:// with a path.")]

_WIDE = 10_000
"""Columns of output that no terminal shows: nothing is wrapped in it."""
_PATIENCE_S = 1.0
_HARMLESS = re.compile(
    r"(aws_|google_|azure_|azure_storage_)?(endpoint(_url)?|region|account_name|profile|allow_http|.*timeout)"
)


@dataclass(frozen=True)
class Answer:
    """What a verb found: a document for programs, and the same for people."""

    document: Mapping[str, Any]
    shown: Sequence[RenderableType]
    ok: bool = True


@dataclass
class Run:
    """What every verb is given."""

    options: Mapping[str, str]
    """Settings of the store."""
    doing: Callable[[], str] = lambda: "waiting for the store"
    """What to show on a terminal while it lasts; a verb may say it better."""
    abandon: Callable[[], None] = lambda: None
    """What to clear away when interrupted, because a verb's thread is not waited for then."""
    event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Where to tell a program how far the work is; on standard error, one JSON value on a line."""

    show: Callable[[Sequence[RenderableType]], None] = lambda _: None
    """Where to tell people something before the work is done."""
    others: dict[str, str] = field(default_factory=dict)
    """Settings of another store."""

    def parsed(self, given: Sequence[str]) -> Mapping[str, str] | None:
        """Settings of another store; None where there are none, and the first store's serve."""
        self.others = _options(given)
        return self.others or None

    def hide(self, text: str) -> str:
        """Take the secrets among the options out of a text."""
        for key, value in (*self.options.items(), *self.others.items()):
            if value.lower() not in ("", "true", "false") and not _HARMLESS.fullmatch(key.lower()):
                text = text.replace(value, "***")
        return text


def verb(function: Callable[..., Answer]) -> Callable[..., int]:
    """Make a command of a function that is given a `Run` first: it has the common options and returns an exit code."""

    def command(*, json: bool, debug: bool, option: list[str], **given: Any) -> int:
        run = Run({})
        try:
            run.options = _options(option)
            if not json:
                run.show = _print
            else:
                run.event = lambda event: print(jsonlib.dumps(event), file=sys.stderr, flush=True)
            answer = _work(run, partial(function, run, **given))
        except KeyboardInterrupt:
            run.abandon()
            print("Interrupted.", file=sys.stderr)
            return 130
        except Exception as error:
            return _fail(error, run, json=json, debug=debug)
        if json:
            print(jsonlib.dumps(answer.document, indent=2, allow_nan=False))
        else:
            _print(answer.shown)
        return 0 if answer.ok else 1

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + _COMMON
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    return command


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is, and wraps it on a terminal only."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=_WIDE)


def _print(parts: Sequence[RenderableType]) -> None:
    stdout = console()
    for part in parts:
        stdout.print(part)


def say(sentence: str, label: str = "Error") -> None:
    """One line on standard error."""
    print(f"{label}: {' '.join(printable(sentence).split())}", file=sys.stderr)


def printable(text: str) -> str:
    """A text that cannot move the cursor or start a new line."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text.replace("\n", " "))


def _option(name: str, annotation: Any, default: Any, **settings: Any) -> inspect.Parameter:
    annotated = Annotated[annotation, typer.Option(f"--{name}", **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotated)


_COMMON = [
    _option(
        "option",
        list[str],
        [],
        metavar="KEY=VALUE",
        help="A setting of the store, such as region=eu-west-1; repeat it.",
    ),
    _option("json", bool, False, help="Answer with one JSON document."),
    _option("debug", bool, False, help="Show the traceback of an error."),
]


def _options(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not key or not equals for key, equals, _ in pairs):  # it may be a secret, and is not repeated
        raise InvalidInputError("--option is written KEY=VALUE, such as --option region=eu-west-1")
    return {key: value for key, _, value in pairs}


def _work(run: Run, function: Callable[[], Answer]) -> Answer:
    """Call in a thread, because a store's answer cannot be interrupted and the wait for a thread can."""
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PenstockWarning)
        warnings.showwarning = lambda message, *_: say(run.hide(str(message)), "Warning")
        Thread(target=work, daemon=True).start()
        wait([future], timeout=_PATIENCE_S)
        with nullcontext() if future.done() else _spinner(run):
            return future.result()


def _spinner(run: Run) -> AbstractContextManager[object]:
    stderr = console(stderr=True)
    if not stderr.is_terminal:
        return nullcontext()
    spinner = Spinner("dots")

    def render() -> RenderableType:
        spinner.update(text=run.doing())
        return spinner

    return Live(get_renderable=render, console=stderr, transient=True, refresh_per_second=8)


def _fail(error: Exception, run: Run, *, json: bool, debug: bool) -> int:
    known = isinstance(error, PenstockError)
    message = str(error) if known else f"{type(error).__name__}: {error}; this is a defect: report it with --debug"
    message = run.hide(message)
    if debug:
        print(run.hide("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    else:
        say(message)
    if json:
        print(jsonlib.dumps({"error": {"type": type(error).__name__, "message": message}}, indent=2))
    wrong_call = isinstance(error, InvalidInputError) and not isinstance(error, LinkNotAllowed | UnsupportedFormat)
    return 2 if wrong_call else 1
