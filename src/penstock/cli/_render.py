"""Render sizes, times and tables as text."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from penstock.cli._command import printable
from penstock.format import Schema


def format_bytes(size: float) -> str:
    """A number of bytes with a decimal unit: `1.5 MB`."""
    power = min(int(math.log(max(size, 1), 1000) + 1e-9), 5)
    size /= 1000**power
    unit = ("bytes", "KB", "MB", "GB", "TB", "PB")[power]
    return f"{size:.0f} {unit}" if power == 0 or size >= 100 else f"{size:.1f} {unit}"


def local_time(time: datetime) -> str:
    """A time in the local time zone: `2026-01-31 12:00`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def render_check(name: str, detail: str, *, ok: bool) -> Text:
    """The outcome of a check, on one line."""
    mark = ("ok   ", "green") if ok else ("BAD  ", "bold red")
    return Text.assemble(mark, f"{name}: {printable(detail)}")


def render_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    fold: str = "",
    right: str = "",
    truncate: Sequence[str] = (),
) -> Table:
    """A table; on a narrow terminal the column `fold` wraps, or those of `truncate` shrink, before others are cut."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
    for header in headers:
        justify: JustifyMethod = "right" if header == right else "left"
        no_wrap = header != fold and header not in truncate
        table.add_column(header, justify=justify, no_wrap=no_wrap, overflow="fold" if header == fold else "ellipsis")
    for row in rows:
        cells = zip(headers, map(printable, row), strict=True)
        table.add_row(*(truncated(text) if header in truncate else text for header, text in cells))
    return table


def schema_table(schema: Schema) -> Table:
    """The columns of a schema as a table."""
    rows = [
        (field.name, str(field.kind), "yes" if field.nullable else "", "" if field.codec == "none" else field.codec)
        for field in schema
    ]
    return render_table(["column", "kind", "nullable", "codec"], rows, fold="kind")


def truncated(text: str) -> Text:
    """A text that is cut at the width of its column; the column itself may wrap, so that it shrinks first."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def key_value_table(pairs: Iterable[tuple[str, str]], *, indent: int = 0) -> Table:
    """Keys and values, one pair on each line."""
    lines = [(" " * indent + printable(key), printable(value)) for key, value in pairs]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=min(max((len(key) for key, _ in lines), default=0), 32))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        table.add_row(*line)
    return table


def pluralize(count: int, noun: str) -> str:
    """A count with its noun: `1 row`, `2 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
