"""What all commands share: common options, output, errors and interruption."""

import inspect
import json as jsonlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner

from penstock.errors import (
    InvalidInputError,
    LinkNotAllowedError,
    PenstockError,
    PenstockWarning,
    UnsupportedFormatError,
    escape_controls,
)

Uri = Annotated[
    str, typer.Argument(metavar="URI", help="A folder, s3://, gs:// or az:// with a path, or penstock://name/table.")
]

_UNWRAPPED_WIDTH = 10_000
"""Width of output that is not a terminal: wider than any line, so that nothing is wrapped."""
_SPINNER_DELAY_S = 1.0
_NOT_SECRET = re.compile(
    r"(aws_|google_|azure_|azure_storage_)?(endpoint(_url)?|region|account_name|profile|allow_http|.*timeout)"
)


@dataclass(frozen=True)
class CommandResult:
    """The result of a command: a document for --json, and the same rendered for a terminal."""

    document: Mapping[str, Any]
    rendered: Sequence[RenderableType]
    ok: bool = True


@dataclass
class CommandContext:
    """Passed to every command: storage options, and hooks for progress and interruption."""

    storage_options: Mapping[str, str]
    """Options of the table's store."""
    status: Callable[[], str] = lambda: "waiting for the store"
    """The text of the spinner; a command may replace it."""
    on_interrupt: Callable[[], None] = lambda: None
    """Cleans up after an interrupt; the thread of the command keeps running until the process exits."""
    emit_event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Writes a progress event as one line of JSON to standard error; with --json only."""
    print_early: Callable[[Sequence[RenderableType]], None] = lambda _: None
    """Prints before the command has finished; without --json only."""
    source_storage_options: dict[str, str] = field(default_factory=dict)
    """Options of the source's store."""

    def parse_source_options(self, given: Sequence[str]) -> Mapping[str, str] | None:
        """Parse --source-option; None if there are none, and those of the table's store apply."""
        self.source_storage_options = _parse_options(given)
        return self.source_storage_options or None

    def redact(self, text: str) -> str:
        """Replace the secrets among the storage options in a text."""
        for key, value in (*self.storage_options.items(), *self.source_storage_options.items()):
            if value.lower() not in ("", "true", "false") and not _NOT_SECRET.fullmatch(key.lower()):
                text = text.replace(value, "***")
        return text


def command(function: Callable[..., CommandResult], *, in_thread: bool = True) -> Callable[..., int]:
    """Wrap a function of a `CommandContext`: add the common options, print the result, and return an exit code.

    A function that handles signals itself runs in the main thread, and so without a spinner.
    """

    def invoke(*, json: bool, debug: bool, option: list[str], **given: Any) -> int:
        context = CommandContext({})
        try:
            context.storage_options = _parse_options(option)
            if json:
                context.emit_event = lambda event: print(jsonlib.dumps(event), file=sys.stderr, flush=True)
            else:
                context.print_early = _print
            call = partial(function, context, **given)
            result = _run_in_thread(context, call) if in_thread else call()
        except KeyboardInterrupt:
            context.on_interrupt()
            print("Interrupted.", file=sys.stderr)
            return 130
        except Exception as error:
            return _report_error(error, context, json=json, debug=debug)
        if json:
            print(jsonlib.dumps(result.document, indent=2, allow_nan=False))
        else:
            _print(result.rendered)
        return 0 if result.ok else 1

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + _COMMON_OPTIONS
    invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    invoke.__doc__ = function.__doc__
    return invoke


class _SafeConsole(Console):
    """A console that escapes control characters in everything it renders: a table's strings are its author's."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_controls(text), style, control)


def console(*, stderr: bool = False) -> Console:
    """A console without markup that wraps lines on a terminal only."""
    settings: dict[str, Any] = {"stderr": stderr, "markup": False, "emoji": False, "highlight": False}
    terminal = _SafeConsole(**settings)
    return terminal if terminal.is_terminal else _SafeConsole(**settings, width=_UNWRAPPED_WIDTH)


def _print(parts: Sequence[RenderableType]) -> None:
    stdout = console()
    for part in parts:
        stdout.print(part)


def print_error(message: str, label: str = "Error") -> None:
    """Print one line to standard error."""
    print(f"{label}: {' '.join(printable(message).split())}", file=sys.stderr)


def printable(text: str) -> str:
    """A text without control characters and line breaks, so that its width is known."""
    return escape_controls(text.replace("\n", " ").replace("\t", " "))


def _option(name: str, annotation: Any, default: Any, **settings: Any) -> inspect.Parameter:
    annotated = Annotated[annotation, typer.Option(f"--{name}", **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotated)


_COMMON_OPTIONS = [
    _option(
        "option",
        list[str],
        [],
        metavar="KEY=VALUE",
        help="A storage option, such as region=eu-west-1; can be repeated.",
    ),
    _option("json", bool, False, help="Print one JSON document."),
    _option("debug", bool, False, help="Show the traceback of an error."),
]


def _parse_options(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not key or not equals for key, equals, _ in pairs):  # the text may be a secret, so it is not shown
        raise InvalidInputError("--option is written KEY=VALUE, such as --option region=eu-west-1")
    return {key: value for key, _, value in pairs}


def _run_in_thread(context: CommandContext, function: Callable[[], CommandResult]) -> CommandResult:
    """Call in a thread: a request to a store cannot be interrupted, but waiting for a thread can."""
    future: Future[CommandResult] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PenstockWarning)
        warnings.showwarning = lambda message, *_: print_error(context.redact(str(message)), "Warning")
        Thread(target=call, daemon=True).start()
        wait([future], timeout=_SPINNER_DELAY_S)
        with nullcontext() if future.done() else _spinner(context):
            return future.result()


def _spinner(context: CommandContext) -> AbstractContextManager[object]:
    stderr = console(stderr=True)
    if not stderr.is_terminal:
        return nullcontext()
    spinner = Spinner("dots")

    def render() -> RenderableType:
        spinner.update(text=context.status())
        return spinner

    return Live(get_renderable=render, console=stderr, transient=True, refresh_per_second=8)


def _report_error(error: Exception, context: CommandContext, *, json: bool, debug: bool) -> int:
    """Print an error and return the exit code."""
    message = str(error)
    if not isinstance(error, PenstockError):
        message = f"{type(error).__name__}: {error}; this is a defect: report it with the output of --debug"
    message = context.redact(message)
    if debug:
        lines = "".join(traceback.format_exception(error))
        print(escape_controls(context.redact(lines)), file=sys.stderr, end="")
    else:
        print_error(message)
    if json:
        print(jsonlib.dumps({"error": {"type": type(error).__name__, "message": message}}, indent=2))
    wrong_usage = isinstance(error, InvalidInputError) and not isinstance(
        error, LinkNotAllowedError | UnsupportedFormatError
    )
    return 2 if wrong_usage else 1
