"""How sizes, times, tables and values look."""

import json
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from penstock.cli._verb import printable
from penstock.format.kinds import Json, Kind, Label, Linked, List, Struct

_TEXT_SHOWN = 100
_TEXT_WRITTEN = 1000
_NUMBERS_SHOWN = 6
_ITEMS_SHOWN = 3


class Preview(NamedTuple):
    """A value in little room: for a JSON document, and as one line."""

    document: Any
    line: str


def amount(size: float) -> str:
    """Bytes as people say them."""
    power = min(int(math.log(max(size, 1), 1000) + 1e-9), 5)
    size /= 1000**power
    unit = ("bytes", "KB", "MB", "GB", "TB", "PB")[power]
    return f"{size:.0f} {unit}" if power == 0 or size >= 100 else f"{size:.1f} {unit}"


def local_time(time: datetime) -> str:
    """A moment by the clock on the wall."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, fold: str = "", right: str = "", shrink: Sequence[str] = ()
) -> Table:
    """A table in which, on a narrow terminal, one column folds, or some shrink, before the others are cut."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
    for head in heads:
        side: JustifyMethod = "right" if head == right else "left"
        whole = head != fold and head not in shrink
        made.add_column(head, justify=side, no_wrap=whole, overflow="fold" if head == fold else "ellipsis")
    for row in rows:
        cells = zip(heads, map(printable, row), strict=True)
        made.add_row(*(shrinking(text) if head in shrink else text for head, text in cells))
    return made


def shrinking(text: str) -> Text:
    """A text that is cut at the width its column is given, where the column itself may wrap and so gives way first."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def facts(pairs: Iterable[tuple[str, str]], *, indent: int = 0) -> Table:
    """Names and what is said of them, a line each."""
    lines = [(" " * indent + name, printable(said)) for name, said in pairs]
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True, min_width=min(max((len(name) for name, _ in lines), default=0), 32))
    made.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        made.add_row(*line)
    return made


def count(number: int, noun: str) -> str:
    """How many of something, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def preview(kind: Kind, value: Any) -> Preview:
    """A value of a column, never at length."""
    if value is None:
        return Preview(None, "–")
    if isinstance(kind, Linked):
        return preview(kind.to, value)
    if isinstance(kind, Label):
        number = int(value)
        name = kind.names[number] if 0 <= number < len(kind.names) else None
        return Preview({"label": number, "name": name}, str(number) if name is None else f"{number} ({name})")
    if isinstance(kind, Json):
        text = json.dumps(value, ensure_ascii=False)
        return Preview(value if len(text) <= _TEXT_WRITTEN else _cut(text, _TEXT_WRITTEN), _cut(text, _TEXT_SHOWN))
    if isinstance(kind, List):
        first = [preview(kind.of, item) for item in value[:_ITEMS_SHOWN]]
        more = ["…"] if len(value) > _ITEMS_SHOWN else []
        line = (
            f"{len(value)} item{'s'[len(value) == 1 :]}: {', '.join([item.line for item in first] + more)}"
            if value
            else "no items"
        )
        return Preview({"items": len(value), "first": [item.document for item in first]}, line)
    if isinstance(kind, Struct):
        inner = {name: preview(part, value[name]) for name, part in kind.fields}
        line = ", ".join(f"{name}: {part.line}" for name, part in inner.items())
        return Preview({name: part.document for name, part in inner.items()}, line)
    return _plain(value)


def _plain(value: Any) -> Preview:
    if isinstance(value, str):
        return Preview(_cut(value, _TEXT_WRITTEN), repr(_cut(value, _TEXT_SHOWN)))
    if isinstance(value, bytes):
        return Preview({"bytes": len(value)}, amount(len(value)))
    array = np.asarray(value)
    if array.ndim == 0:
        number = _number(array[()])
        return Preview(number, _short(number))
    return _array(array)


def _array(array: npt.NDArray[Any]) -> Preview:
    flat = array.reshape(-1)
    values = [_number(item) for item in flat[:_NUMBERS_SHOWN]]
    ordered = array.size > 0 and array.dtype.kind != "c"
    least, most = (_number(np.fmin.reduce(flat)), _number(np.fmax.reduce(flat))) if ordered else (None, None)
    document = {"dtype": array.dtype.name, "shape": list(array.shape), "min": least, "max": most, "first": values}
    line = f"{array.dtype.name}{list(array.shape)}"
    if 0 < array.size <= _NUMBERS_SHOWN:
        line += f"  {', '.join(map(_short, values))}"
    elif ordered:
        line += f"  {_short(least)} to {_short(most)}"
    return Preview(document, line)


def _number(item: Any) -> Any:
    """A numpy scalar as JSON can say it."""
    if isinstance(item, np.datetime64 | np.timedelta64):
        return str(item)
    plain = item.item()
    if isinstance(plain, complex) or (isinstance(plain, float) and not math.isfinite(plain)):
        return str(plain)
    return plain


def _short(number: Any) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
