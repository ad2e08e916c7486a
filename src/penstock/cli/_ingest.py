"""`penstock sync`, and what it shares with `penstock create URI from-SOURCE`."""

import os
import re
import sys
import time
from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import format_bytes, pluralize, render_table, schema_table
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.ingest import SOURCES, ImageCost, IngestProgress, find_transform

_MAX_REJECTS = 10
_BAR_WIDTH = 24
_EVENT_INTERVAL_S = 1.0
_SYS_PATH_LOCK = Lock()

SourceOption = Annotated[
    list[str],
    typer.Option(
        "--source-option",
        metavar="KEY=VALUE",
        help="A storage option of the source, if it needs others than --option; can be repeated.",
    ),
]
BadSamplesAction = Annotated[
    str, typer.Option("--bad-samples", metavar="skip|raise", help="What to do with a file or row that cannot be read.")
]
BadSampleLimit = Annotated[
    str | None,
    typer.Option(
        "--bad-sample-limit",
        metavar="N",
        help="Stop after more than N bad files or rows, or a share of the rows such as 0.01; by default 1000.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Inspect the source, show the plan, and write nothing.")]
NumWorkers = Annotated[
    int | None, typer.Option("--num-workers", metavar="N", help="Concurrent parts; by default the number of cores.")
]
Message = Annotated[str, typer.Option("--message", "-m", help="The message of the commit.")]

KINDS = "\n".join(
    [
        "\b",
        "SOURCE is s3://…, gs://…, az://…, file:///… or a path. Its kind is detected, or set with --as:",
    ]
    + [f"  {source.name:12} {source.about}" for source in SOURCES.values()]
)


def sync(
    context: CommandContext,
    uri: Uri,
    source: Annotated[str | None, typer.Argument(metavar="from-SOURCE", help="Only this one of its sources.")] = None,
    bad_samples: BadSamplesAction = "skip",
    bad_sample_limit: BadSampleLimit = None,
    dry_run: DryRun = False,
    num_workers: NumWorkers = None,
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="The transform of the first ingest, to allow it.")
    ] = None,
    source_option: SourceOption = [],  # noqa: B006
    message: Message = "",
) -> CommandResult:
    """Ingest the new files of the sources of a table, as one commit for each source."""
    import_transform(transform)
    renderer = ProgressRenderer(context)
    results = penstock.sync(
        uri,
        None if source is None else parse_source(source),
        bad_samples=parse_bad_samples(bad_samples, bad_sample_limit),
        dry_run=dry_run,
        message=message,
        storage_options=context.storage_options,
        source_storage_options=context.parse_source_options(source_option),
        num_workers=num_workers,
        transform=transform,
        progress=renderer,
    )
    rendered: list[RenderableType] = []
    for result in results:
        rendered += [*render_plan(result), *render_result(result, renderer.seconds, dry_run=dry_run)]
    return CommandResult({"uri": uri, "sources": [ingest_document(result) for result in results]}, rendered)


def parse_source(text: str) -> str:
    """The source after `from-`."""
    if not text.startswith("from-") or len(text) == len("from-"):
        raise InvalidInputError("write the source as from-SOURCE, such as from-s3://bucket/path or from-./photos")
    return text.removeprefix("from-")


def parse_bad_samples(action: str, limit: str | None) -> BadSamples:
    """Parse --bad-samples and --bad-sample-limit."""
    if action not in ("skip", "raise"):
        raise InvalidInputError(f"--bad-samples is skip or raise, not {action!r}")
    try:
        number = None if limit is None else int(limit) if limit.isdecimal() else float(limit)
    except ValueError:
        raise InvalidInputError(f"--bad-sample-limit is a count or a share, such as 0.01, not {limit!r}") from None
    return BadSamples(action="skip" if action == "skip" else "raise", limit=number)


def parse_codecs(texts: Sequence[str]) -> dict[str, str]:
    """Parse `column=codec`, once for each column."""
    pairs = [text.partition("=") for text in texts]
    for text, (column, equals, codec) in zip(texts, pairs, strict=True):
        if not column or not equals or not codec:
            raise InvalidInputError(f"--codec is written COLUMN=CODEC, such as image=jpeg:90, not {text!r}")
    return {column: codec for column, _, codec in pairs}


def parse_image_size(text: str | None) -> tuple[int, int] | None:
    """Parse `256x256` (height and width), or one number for both."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise InvalidInputError(f"--image-size is HEIGHTxWIDTH, such as 256x256, not {text!r}")
    return int(match[1]), int(match[2] or match[1])


def import_transform(name: str | None) -> None:
    """Import the module of a transform; after the usual places also from the current folder.

    Raises `InvalidInputError` if it cannot be imported. The ingest then finds the module among those imported.
    """
    if name is None:
        return
    folder = os.getcwd()
    with _SYS_PATH_LOCK:
        sys.path.append(folder)
        try:
            find_transform(name)
        finally:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


class ProgressRenderer:
    """Shows the progress of an ingest: a line on a terminal, events with --json."""

    def __init__(self, context: CommandContext) -> None:
        self._context, self._start, self._last_event_s = context, time.monotonic(), 0.0
        self.seconds = 0.0
        self.shown_notes: tuple[str, ...] = ()
        context.status = lambda: "inspecting the source"

    def show_plan(self, planned: penstock.IngestResult) -> None:
        """Show the plan before rows are written."""
        self._context.print_early(render_plan(planned))
        self.shown_notes = planned.notes
        self._context.emit_event({"event": "plan"} | ingest_document(planned))

    def __call__(self, progress: IngestProgress) -> None:
        self.seconds = time.monotonic() - self._start
        self._context.status = lambda: self._line(progress)
        if time.monotonic() - self._last_event_s >= _EVENT_INTERVAL_S or progress.files_done == progress.files:
            self._last_event_s = time.monotonic()
            counts = ("files", "files_done", "bytes", "bytes_read", "rows", "rejects")
            event = {"event": "progress", "seconds": round(self.seconds, 3)}
            self._context.emit_event(event | {name: getattr(progress, name) for name in counts})

    def _line(self, progress: IngestProgress) -> str:
        seconds = time.monotonic() - self._start
        share = progress.bytes_read / progress.bytes if progress.bytes else 0.0
        rate = max(0, progress.bytes_read - progress.skipped_bytes) / max(seconds, 1e-3)
        remaining_s = (progress.bytes - progress.bytes_read) / rate if rate else 0.0
        bar = "━" * round(_BAR_WIDTH * share) + "─" * (_BAR_WIDTH - round(_BAR_WIDTH * share))
        bad = f", {progress.rejects:,} skipped" if progress.rejects else ""
        return (
            f"{bar} {share:4.0%}  {progress.files_done:,} of {pluralize(progress.files, 'file')},"
            f" {progress.rows:,} rows, {format_bytes(rate)}/s, {_format_duration(remaining_s)} left{bad}"
        )


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def ingest_document(result: penstock.IngestResult) -> dict[str, Any]:
    """The result of an ingest as a JSON document."""
    return {
        "uri": result.uri,
        "source": result.source,
        "kind": result.kind,
        "version": result.version,
        "rows": result.rows,
        "files": {
            "listed": result.files.listed,
            "taken": result.files.taken,
            "rejected": result.files.rejected,
            "ignored": result.files.ignored,
            "ignored_reasons": dict(result.files.ignored_reasons),
        },
        "source_bytes": result.source_bytes,
        "written_bytes": result.written_bytes,
        "continued_rows": result.resumed_rows,
        "damaged_parts": result.damaged_parts,
        "changed": list(result.changed),
        "notes": list(result.notes),
        "rejects": [{"name": reject.name, "reason": reject.reason} for reject in result.rejects],
        "columns": [
            {"name": f.name, "kind": str(f.kind), "nullable": f.nullable, "codec": f.codec} for f in result.schema
        ],
        "images": [
            {
                "column": cost.column,
                "encoded_bytes": round(cost.encoded_bytes),
                "decoded_bytes": round(cost.decoded_bytes),
                "decode_ms": round(cost.decode_s * 1e3, 3),
            }
            for cost in result.image_costs
        ],
        "settings": result.options.to_json(),
    }


def render_plan(planned: penstock.IngestResult) -> list[RenderableType]:
    """The new files and the columns of a source, for a terminal."""
    size = format_bytes(planned.source_bytes)
    return [
        f"{planned.source}: {planned.kind}, {pluralize(planned.files.taken, 'new file')}, {size}",
        "",
        schema_table(planned.schema),
        "",
        *(f"{note}." for note in planned.notes),
        *(_render_image_cost(cost, decode=planned.options.decode) for cost in planned.image_costs),
    ]


def render_result(result: penstock.IngestResult, seconds: float, *, dry_run: bool) -> list[RenderableType]:
    """What an ingest did, for a terminal."""
    rendered: list[RenderableType] = []
    if dry_run:
        rendered.append("Dry run: nothing was written.")
    elif result.version is None:
        rendered.append("Nothing new." if not result.rejects else "No rows could be read; nothing was committed.")
    else:
        resumed = f" ({result.resumed_rows:,} of them stored by an earlier run)" if result.resumed_rows else ""
        rate = format_bytes(result.source_bytes / max(seconds, 1e-3))
        written = "nothing copied" if result.options.link else f"{format_bytes(result.written_bytes)} written"
        rendered.append(
            f"{result.version} of {result.uri}: {pluralize(result.rows, 'row')}{resumed}, {written} in {seconds:.1f} s"
            f" ({rate}/s)"
        )
    rendered.append(_render_files(result.files))
    if result.damaged_parts:
        parts = pluralize(result.damaged_parts, "part")
        rendered.append(f"{parts} of an interrupted run had damaged records and were ingested again.")
    if result.changed:
        rendered.append(
            f"{pluralize(len(result.changed), 'file')} changed in the source since the last ingest, and were not"
            f" ingested again: {', '.join(result.changed[:3])}{' …' if len(result.changed) > 3 else ''}"
        )
    if result.rejects:
        rejects = [(reject.name, reject.reason) for reject in result.rejects[:_MAX_REJECTS]]
        rendered += ["", f"Skipped files or rows: {len(result.rejects):,}"]
        rendered.append(render_table(["name", "reason"], rejects, fold="reason"))
        if len(result.rejects) > _MAX_REJECTS:
            rendered.append(f"… and {len(result.rejects) - _MAX_REJECTS:,} more; --json lists all of them")
    return rendered


def _render_files(files: penstock.FileCounts) -> str:
    """What became of the files of a source: `5 files listed: 3 taken, 1 rejected, 1 ignored (1 hidden)`."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in files.ignored_reasons.items())
    return (
        f"{pluralize(files.listed, 'file')} listed: {files.taken:,} taken, {files.rejected:,} rejected,"
        f" {files.ignored:,} ignored{f' ({reasons})' if reasons else ''}"
    )


def _render_image_cost(cost: ImageCost, *, decode: bool) -> str:
    encoded, decoded = format_bytes(cost.encoded_bytes), format_bytes(cost.decoded_bytes)
    ratio = cost.decoded_bytes / max(1, cost.encoded_bytes)
    decode_time = f"{cost.decode_s * 1e3:.2f} ms of one core for each image"
    if decode:
        return (
            f"{cost.column}: stored decoded, {decoded} a row instead of {encoded} ({ratio:.1f}x); saves {decode_time}."
        )
    return (
        f"{cost.column}: stored unchanged, {encoded} a row; training decodes it in {decode_time}."
        f" With --decode: {decoded} a row ({ratio:.1f}x), and no decoding."
    )
