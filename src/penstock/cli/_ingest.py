"""Taking other people's data in: what `penstock create URI from-SOURCE` and `penstock sync` share."""

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import penstock
from penstock.cli._show import amount, count, table
from penstock.cli._verb import Answer, Run, Uri
from penstock.errors import InvalidInputError
from penstock.ingest import SOURCES, OnBad, Progress

_REJECTS_SHOWN = 10
_BAR = 24
_EVENT_S = 1.0

SourceOption = Annotated[
    list[str],
    typer.Option(
        "--source-option", metavar="KEY=VALUE", help="A setting of the source's store, where it needs other ones."
    ),
]
OnBadOption = Annotated[
    str, typer.Option("--on-bad", metavar="skip|raise", help="What to do with a file or row that cannot be read.")
]
MaxBad = Annotated[int, typer.Option("--max-bad", metavar="N", help="Stop when more than N could not be read.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Look at the source, show what would happen, and stop.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Parts at work at once; by default one for each core.")]
Message = Annotated[str, typer.Option("--message", "-m", help="What the log says about it.")]

KINDS = "\n".join(
    [
        "\b",
        "SOURCE is s3://…, gs://…, az://…, file:///… or a path. Its kind is recognised, or said with --as:",
    ]
    + [f"  {source.name:12} {source.about}" for source in SOURCES.values()]
)


def sync(
    run: Run,
    uri: Uri,
    source: Annotated[str | None, typer.Argument(metavar="from-SOURCE", help="Only this one of its sources.")] = None,
    on_bad: OnBadOption = "skip",
    max_bad: MaxBad = 1000,
    dry_run: DryRun = False,
    workers: Workers = None,
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="The one that the table was made with, to call it.")
    ] = None,
    source_option: SourceOption = [],  # noqa: B006
    message: Message = "",
) -> Answer:
    """Take in what is new in the sources that a table was made from, as one commit for each of them."""
    watch = Watch(run)
    done = penstock.sync(
        uri,
        None if source is None else source_of(source),
        on_bad=checked_on_bad(on_bad),
        max_bad=max_bad,
        dry_run=dry_run,
        message=message,
        options=run.options,
        source_options=run.parsed(source_option),
        workers=workers,
        transform=transform,
        progress=watch,
    )
    shown: list[RenderableType] = []
    for one in done:
        shown += [*found_in(one), *told(one, watch, dry_run=dry_run)]
    return Answer({"uri": uri, "sources": [document(one) for one in done]}, shown)


def source_of(text: str) -> str:
    """What follows `from-`."""
    if not text.startswith("from-") or len(text) == len("from-"):
        raise InvalidInputError("what follows the URI is from-SOURCE, such as from-s3://bucket/path or from-./photos")
    return text.removeprefix("from-")


def checked_on_bad(text: str) -> OnBad:
    if text == "skip":
        return "skip"
    if text == "raise":
        return "raise"
    raise InvalidInputError(f"--on-bad is skip or raise, not {text!r}")


def parse_codecs(texts: Sequence[str]) -> dict[str, str]:
    """Understand `column=codec`, once for each column."""
    pairs = [text.partition("=") for text in texts]
    for text, (column, equals, codec) in zip(texts, pairs, strict=True):
        if not column or not equals or not codec:
            raise InvalidInputError(f"--codec is written COLUMN=CODEC, such as image=jpeg:90, not {text!r}")
    return {column: codec for column, _, codec in pairs}


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Understand `256x256` (height and width), or one number for both."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not found:
        raise InvalidInputError(f"--resize is HEIGHTxWIDTH, such as 256x256, not {text!r}")
    return int(found[1]), int(found[2] or found[1])


class Watch:
    """Shows how far an ingest is: a line on a terminal, events for programs."""

    def __init__(self, run: Run) -> None:
        self._run, self._started, self._told_s = run, time.monotonic(), 0.0
        self.seconds = 0.0
        run.doing = lambda: "looking at the source"

    def planned(self, found: penstock.Ingested) -> None:
        """Show what was found, before the work starts."""
        self._run.show(found_in(found))
        self._run.event({"event": "plan"} | document(found))

    def __call__(self, progress: Progress) -> None:
        self.seconds = time.monotonic() - self._started
        self._run.doing = lambda: self._line(progress)
        if time.monotonic() - self._told_s >= _EVENT_S or progress.files_done == progress.files:
            self._told_s = time.monotonic()
            self._run.event({"event": "progress", "seconds": round(self.seconds, 3)} | _counted(progress))

    def _line(self, progress: Progress) -> str:
        seconds = time.monotonic() - self._started
        share = progress.bytes_read / progress.bytes if progress.bytes else 0.0
        rate = max(0, progress.bytes_read - progress.skipped_bytes) / max(seconds, 1e-3)
        left = (progress.bytes - progress.bytes_read) / rate if rate else 0.0
        bar = "━" * round(_BAR * share) + "─" * (_BAR - round(_BAR * share))
        bad = f", {progress.rejects:,} left out" if progress.rejects else ""
        return (
            f"{bar} {share:4.0%}  {progress.files_done:,} of {count(progress.files, 'file')}, {progress.rows:,} rows,"
            f" {amount(rate)}/s, {_time_left(left)} left{bad}"
        )


def _counted(progress: Progress) -> dict[str, Any]:
    names = ("files", "files_done", "bytes", "bytes_read", "rows", "rejects")
    return {name: getattr(progress, name) for name in names}


def _time_left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def document(done: penstock.Ingested) -> dict[str, Any]:
    """An ingest for programs."""
    return {
        "uri": done.uri,
        "source": done.source,
        "kind": done.kind,
        "version": done.version,
        "rows": done.rows,
        "files": done.files,
        "source_bytes": done.source_bytes,
        "written_bytes": done.written_bytes,
        "continued_rows": done.continued_rows,
        "changed": list(done.changed),
        "rejects": [{"name": reject.name, "reason": reject.reason} for reject in done.rejects],
        "columns": [
            {"name": f.name, "kind": str(f.kind), "nullable": f.nullable, "codec": f.codec} for f in done.schema
        ],
        "pictures": [
            {
                "column": weighed.column,
                "encoded_bytes": round(weighed.encoded_bytes),
                "decoded_bytes": round(weighed.decoded_bytes),
                "decode_ms": round(weighed.decode_s * 1e3, 3),
            }
            for weighed in done.weighed
        ],
        "settings": done.settings.to_json(),
    }


def found_in(done: penstock.Ingested) -> list[RenderableType]:
    """What is in a source, for people."""
    found = f"{done.source}: {done.kind}, {count(done.files, 'new file')}, {amount(done.source_bytes)}"
    rows = [
        (field.name, str(field.kind), "yes" if field.nullable else "", "" if field.codec == "none" else field.codec)
        for field in done.schema
    ]
    shown: list[RenderableType] = [found, "", table(["column", "kind", "nullable", "codec"], rows, fold="kind"), ""]
    return [*shown, *(_weight(weighed, done) for weighed in done.weighed)]


def told(done: penstock.Ingested, watch: Watch, *, dry_run: bool) -> list[RenderableType]:
    """What an ingest did, for people."""
    shown: list[RenderableType] = []
    if dry_run:
        shown.append("Nothing was written: this was a dry run.")
    elif done.version is None:
        shown.append("Nothing new." if not done.rejects else "No rows could be read; nothing was committed.")
    else:
        continued = f" ({done.continued_rows:,} of them stored by an earlier run)" if done.continued_rows else ""
        rate = amount(done.source_bytes / max(watch.seconds, 1e-3))
        linked = "nothing copied" if done.settings.link else f"{amount(done.written_bytes)} written"
        shown.append(
            f"{count(done.rows, 'row')}{continued}, {linked} in {watch.seconds:.1f} s ({rate}/s):"
            f" {done.version} of {done.uri}"
        )
    if done.changed:
        shown.append(
            f"{count(len(done.changed), 'file')} changed in the source since they were taken in, and were left as they"
            f" are: {', '.join(done.changed[:3])}{' …' if len(done.changed) > 3 else ''}"
        )
    if done.rejects:
        shown += ["", f"Files or rows left out: {len(done.rejects):,}"]
        listed = [(reject.name, reject.reason) for reject in done.rejects[:_REJECTS_SHOWN]]
        shown.append(table(["name", "reason"], listed, fold="reason"))
        if len(done.rejects) > _REJECTS_SHOWN:
            shown.append(f"… and {len(done.rejects) - _REJECTS_SHOWN:,} more; all of them with --json")
    return shown


def _weight(weighed: Any, done: penstock.Ingested) -> str:
    encoded, decoded = amount(weighed.encoded_bytes), amount(weighed.decoded_bytes)
    times = weighed.decoded_bytes / max(1, weighed.encoded_bytes)
    cost = f"{weighed.decode_s * 1e3:.2f} ms of a core for each"
    if done.settings.decode:
        return f"{weighed.column}: stored decoded, {decoded} a row instead of {encoded} ({times:.1f}x); saves {cost}."
    return (
        f"{weighed.column}: stored as it came, {encoded} a row; decoding takes {cost} while training."
        f" With --decode: {decoded} a row ({times:.1f}x), and no decoding."
    )
