"""The figures as the table of docs/benchmarks.md."""

from typing import Any

from benchmarks.query.bench import Line

_HEADS = ("", "Penstock", "relative to", "ratio", "wanted")


def render(record: dict[str, Any]) -> str:
    """A record of results as Markdown; a figure that misses its target has its ratio in bold."""
    lines = [Line(**line) for part in record["parts"].values() for line in part["lines"]]
    rows = [_HEADS, ("---",) * len(_HEADS), *map(_cells, lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shown(value: float, median: float | None) -> str:
    """A number, and its median in brackets if it is the smallest of several."""
    return number(value) if median is None else f"{number(value)} ({number(median)})"


def number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _cells(line: Line) -> tuple[str, ...]:
    ours = f"{shown(line.ours, line.ours_median)} {line.unit}".replace(" share", "")
    if not line.against:
        return line.figure, ours if line.holds else f"**{ours}**", "", "", line.target
    other = f"{line.against}: {shown(line.other, line.other_median)} {line.unit}".replace(" share", "")
    ratio = "" if line.unit == "share" else number(line.ratio)
    return line.figure, ours, other, ratio if line.holds else f"**{ratio or ours}**", line.target
