"""The rows of a result: printed as a table of short previews, or written to a file."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import penstock
from penstock.cli._command import CommandContext, CommandResult, console, printable
from penstock.cli._export import RESULT_FORMATS, check_target, export_view, temporary_path
from penstock.cli._preview import Preview, preview
from penstock.cli._render import format_bytes, key_value_table, pluralize, render_table
from penstock.dataset import preview_rows
from penstock.errors import InvalidInputError
from penstock.table import ROW_ID

_CELL_CHARS = 60
_MIN_COLUMN_CHARS = 10
_SHOWN_ROWS = 20

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the rows to a file: .parquet, .arrow, .csv, .json or .jsonl."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


def check_output(output: Path | None, *, force: bool) -> None:
    """Raise an error for a file that cannot or must not be written, before the work begins."""
    if output is not None:
        check_target(output, force=force, formats=RESULT_FORMATS)
    elif force:
        raise InvalidInputError("--force is for --output, which is not given")


def rows_result(
    context: CommandContext, view: penstock.View, output: Path | None, document: Mapping[str, Any], limit: int | None
) -> CommandResult:
    """Print the first rows, or write all to a file; a limit that is given holds for both."""
    if output is not None:
        chosen = view if limit is None else view[:limit]
        _export(context, chosen, output)
        size = output.stat().st_size
        written = {"path": str(output), "rows": len(chosen), "bytes": size}
        line = f"Wrote {pluralize(len(chosen), 'row')} to {printable(str(output))}, {format_bytes(size)}."
        return CommandResult({**document, "total": len(view), "file": written}, [line])
    shown = view[: _SHOWN_ROWS if limit is None else limit]
    rows = _previews(shown)
    complete = {
        **document,
        "total": len(view),
        "rows": [{name: cell.document for name, cell in row.items()} for row in rows],
    }
    title = pluralize(len(view), "row") if len(rows) == len(view) else f"{len(rows):,} of {pluralize(len(view), 'row')}"
    return CommandResult(complete, [title, *_rendered(rows)])


def _previews(view: penstock.View) -> list[dict[str, Preview]]:
    kinds = {field.name: field.kind for field in view.schema}
    names = view[:0].to_arrow().schema.names
    rows = preview_rows(view)
    ids = view.select(ROW_ID).to_arrow()[ROW_ID].to_pylist() if ROW_ID in names else [None] * len(rows)
    return [
        {name: Preview(id, str(id)) if name == ROW_ID else preview(kinds[name], row[name]) for name in names}
        for id, row in zip(ids, rows, strict=True)
    ]


def _rendered(rows: list[dict[str, Preview]]) -> list[RenderableType]:
    if not rows:
        return []
    names = list(rows[0])
    if len(names) * _MIN_COLUMN_CHARS > console().width:  # too narrow for a table
        parts: list[RenderableType] = []
        for index, row in enumerate(rows):
            parts += ["", f"row {index}", key_value_table([(name, cell.line) for name, cell in row.items()], indent=2)]
        return parts
    cells = [[_cut(cell.line) for cell in row.values()] for row in rows]
    return ["", render_table(names, cells, truncate=names)]


def _cut(line: str) -> str:
    return line if len(line) <= _CELL_CHARS else line[: _CELL_CHARS - 1] + "…"


def _export(context: CommandContext, view: penstock.View, to: Path) -> None:
    start, temporary = time.monotonic(), temporary_path(to)

    def progress(rows: int) -> None:
        context.status = lambda: f"{rows:,} of {len(view):,} rows, {rows / (time.monotonic() - start):,.0f} rows/s"

    context.on_interrupt = lambda: temporary.unlink(missing_ok=True)
    progress(0)
    export_view(view, to, temporary, progress)
