"""`penstock diff`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import penstock
from penstock.cli._cells import previews
from penstock.cli._show import Preview, count, facts, shrinking
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.cli._versions import Called


@dataclass(frozen=True)
class _Change:
    """One value as it was, and as it is."""

    row_id: int
    old: Preview
    new: Preview


def diff(
    run: Run,
    uri: Uri,
    old: Annotated[str, typer.Argument(metavar="OLD", help="7, main@7, a tag or a branch.")],
    new: Annotated[str | None, typer.Argument(metavar="NEW", help="Likewise; else the newest of main.")] = None,
    n: Annotated[
        int, typer.Option("-n", min=0, max=1000, metavar="VALUES", help="Values of a column, and ids, at most.")
    ] = 5,
) -> Answer:
    """Show what changed from one version to another: rows, columns, and the first values as old -> new."""
    dataset = penstock.load(uri, options=run.options)
    found = dataset.diff(old, new)
    called = Called(dataset)
    before, after = called(found._diff.before.commit), called(found._diff.after.commit)
    added, deleted = _ids(found.added, n), _ids(found.deleted, n)
    values = {name: _changes(found, name, n) for name in found.updated}
    document = {
        "uri": dataset.uri,
        **found.to_json(),
        "old": before,
        "new": after,
        "ids": {"added": added, "deleted": deleted, "updated": found.updated_rows[:n].tolist()},
        "values": {
            name: [{"row_id": one.row_id, "old": one.old.document, "new": one.new.document} for one in changes]
            for name, changes in values.items()
        },
    }
    title = Text(f"{before} -> {after}", "bold") + f" of {printable(dataset.uri)}"
    if not found:
        return Answer(document, [title, "no difference"])
    shown: list[RenderableType] = [title, facts(_summary(found, added, deleted))]
    for name, changes in values.items():
        shown += _shown(name, len(found.updated[name]), changes)
    return Answer(document, shown)


def column_changes(found: penstock.TableDiff) -> str:
    """Columns that came, went, or have another name, in a line; empty where there are none."""
    words = [f"+{name}" for name in found.columns_added] + [f"-{name}" for name in found.columns_dropped]
    return ", ".join(words + [f"{old} is now {new}" for old, new in found.columns_renamed])


def row_changes(found: penstock.TableDiff) -> str:
    """Rows that came, went, or have other values, in a line."""
    return f"{len(found.added):,} added, {len(found.deleted):,} deleted, {len(found.updated_rows):,} updated"


def _summary(found: penstock.TableDiff, added: Sequence[int], deleted: Sequence[int]) -> list[tuple[str, str]]:
    said = [("rows", row_changes(found))]
    for name, ids, whole in (("  added", added, len(found.added)), ("  deleted", deleted, len(found.deleted))):
        if ids:
            said.append((name, f"id {', '.join(map(str, ids))}{', …' if whole > len(ids) else ''}"))
    if columns := column_changes(found):
        said.append(("columns", columns))
    return said


def _ids(view: penstock.View, n: int) -> list[int]:
    ids: list[int] = view["_row_id"][:n].tolist()
    return ids


def _changes(found: penstock.TableDiff, name: str, n: int) -> list[_Change]:
    ids = found.updated[name][:n]
    old_name = {new: old for old, new in found.columns_renamed}.get(name, name)
    sides = []
    for view, column in ((found.before(ids), old_name), (found.after(ids), name)):
        sides.append(previews(view._reader, [view.schema[column]], np.asarray(view._rows), follow=False)[column])
    return [_Change(id, old, new) for id, old, new in zip(ids.tolist(), *sides, strict=True)]


def _shown(name: str, whole: int, changes: Sequence[_Change]) -> list[RenderableType]:
    listed = Table.grid(padding=(0, 1))
    listed.add_column(no_wrap=True, justify="right")
    listed.add_column()
    listed.add_column(no_wrap=True)
    listed.add_column()
    for one in changes:
        old, new = printable(one.old.line), printable(one.new.line)
        listed.add_row(
            f"  id {one.row_id}", shrinking(old), "->", shrinking(new if new != old else f"{new}, but different inside")
        )
    more: list[Any] = [f"  and {whole - len(changes):,} more"] if whole > len(changes) else []
    return ["", Text(printable(name), "bold") + f": {count(whole, 'value')} changed", listed, *more]
