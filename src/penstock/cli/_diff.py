"""`penstock diff`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._preview import Preview, preview
from penstock.cli._render import key_value_table, pluralize, truncated
from penstock.cli._versions import VersionNamer
from penstock.dataset import preview_rows


@dataclass(frozen=True)
class _Change:
    """The old and the new value of a cell."""

    row_id: int
    old: Preview
    new: Preview


def diff(
    context: CommandContext,
    uri: Uri,
    old: Annotated[str, typer.Argument(metavar="OLD", help="7, main@7, a tag or a branch.")],
    new: Annotated[str | None, typer.Argument(metavar="NEW", help="The same; by default the newest of main.")] = None,
    n: Annotated[
        int, typer.Option("-n", min=0, max=1000, metavar="VALUES", help="Maximum of values per column, and of row ids.")
    ] = 5,
) -> CommandResult:
    """Show what changed from one version to another: rows, columns, and the first values as old -> new."""
    dataset = penstock.load(uri, storage_options=context.storage_options)
    changes = dataset.diff(old, new)
    namer = VersionNamer(dataset)
    before, after = namer(changes.old_commit), namer(changes.new_commit)
    added, deleted = _row_ids(changes.added, n), _row_ids(changes.deleted, n)
    values = {name: _changed_values(changes, name, n) for name in changes.updated}
    document = {
        "uri": dataset.uri,
        **changes.to_json(),
        "old": before,
        "new": after,
        "ids": {"added": added, "deleted": deleted, "updated": changes.updated_rows[:n].tolist()},
        "values": {
            name: [{"row_id": one.row_id, "old": one.old.document, "new": one.new.document} for one in changed]
            for name, changed in values.items()
        },
    }
    title = Text(f"{before} -> {after}", "bold") + f" of {printable(dataset.uri)}"
    if not changes:
        return CommandResult(document, [title, "no difference"])
    rendered: list[RenderableType] = [title, key_value_table(_summary(changes, added, deleted))]
    for name, changed in values.items():
        rendered += _render_values(name, len(changes.updated[name]), changed)
    return CommandResult(document, rendered)


def format_column_changes(changes: penstock.TableDiff) -> str:
    """Added, dropped and renamed columns in one line; empty if there are none."""
    words = [f"+{name}" for name in changes.columns_added] + [f"-{name}" for name in changes.columns_dropped]
    return ", ".join(words + [f"{old} is now {new}" for old, new in changes.columns_renamed])


def format_quarantine_changes(changes: penstock.TableDiff) -> str:
    """Counts of quarantined and released rows in one line; empty if there are none."""
    counts = (len(changes.quarantined), "quarantined"), (len(changes.released), "released")
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def format_row_changes(changes: penstock.TableDiff) -> str:
    """Counts of added, deleted and updated rows in one line."""
    return f"{len(changes.added):,} added, {len(changes.deleted):,} deleted, {len(changes.updated_rows):,} updated"


def _summary(changes: penstock.TableDiff, added: Sequence[int], deleted: Sequence[int]) -> list[tuple[str, str]]:
    pairs = [("rows", format_row_changes(changes))]
    for name, ids, total in (("  added", added, len(changes.added)), ("  deleted", deleted, len(changes.deleted))):
        if ids:
            pairs.append((name, f"id {', '.join(map(str, ids))}{', …' if total > len(ids) else ''}"))
    if quarantine := format_quarantine_changes(changes):
        pairs.append(("quarantine", quarantine))
    if columns := format_column_changes(changes):
        pairs.append(("columns", columns))
    return pairs


def _row_ids(view: penstock.View, n: int) -> list[int]:
    ids: list[int] = view["_row_id"][:n].tolist()
    return ids


def _changed_values(changes: penstock.TableDiff, name: str, n: int) -> list[_Change]:
    ids = changes.updated[name][:n]
    old_name = {new: old for old, new in changes.columns_renamed}.get(name, name)
    old, new = (
        [preview(view.schema[column].kind, row[column]) for row in preview_rows(view.select(column))]
        for view, column in ((changes.before(row_ids=ids), old_name), (changes.after(row_ids=ids), name))
    )
    return [_Change(*change) for change in zip(ids.tolist(), old, new, strict=True)]


def _render_values(name: str, total: int, changed: Sequence[_Change]) -> list[RenderableType]:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column()
    for one in changed:
        old, new = printable(one.old.line), printable(one.new.line)
        note = ", but the full values differ" if new == old else ""
        table.add_row(f"  id {one.row_id}", truncated(old), "->", truncated(new + note))
    more: list[Any] = [f"  and {total - len(changed):,} more"] if total > len(changed) else []
    return ["", Text(printable(name), "bold") + f": {pluralize(total, 'value')} changed", table, *more]
