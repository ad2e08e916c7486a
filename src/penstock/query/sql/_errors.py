"""Errors that point at a place in the SQL text, and the one gate through which DuckDB's errors pass."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.errors import InvalidInputError, NotFoundError, PenstockError
from penstock.query.sql.execution import import_duckdb

_Error = TypeVar("_Error", bound=PenstockError)
_MAX_LINE = 100
_MAX_COMPARED = 2000
_DUCKDB_POSITION = re.compile(r"\n+LINE \d+:.*", re.DOTALL)
_PREFIX = re.compile(r"^[A-Z][A-Za-z ]* Error: ?")


class SqlErrors:
    """Makes errors about one SQL text."""

    def __init__(self, sql: str, shift: int = 0) -> None:
        """`shift` is the number of bytes that were put before the text when it was parsed."""
        self._bytes, self._shift = sql.encode(errors="replace"), shift

    def invalid(self, what: str, at: Any = None) -> InvalidInputError:
        """An error about a node of the syntax tree, or about the whole text."""
        return InvalidInputError(what + self._place(at))

    def unknown(self, what: str, name: str, known: Iterable[str], at: Any = None) -> NotFoundError:
        """An error about a name that does not exist, with those that are like it."""
        names = list(known)
        dotted = next(
            (each for each in names if "." in each and f"{name}.".lower().startswith(f"{each}.".lower())), None
        )
        if dotted is not None:
            hint = f"a name with dots needs double quotes in SQL, {quoted(dotted)}"
            return NotFoundError(f"there is no {what} {name!r} without quotes: {hint}{self._place(at)}")
        return NotFoundError(f"there is no {what} {name!r}{near_matches(name, names)}{self._place(at)}")

    def _place(self, at: Any) -> str:
        start = at.get("query_location") if isinstance(at, dict) else at
        if not isinstance(start, int) or not 0 <= start - self._shift <= len(self._bytes):
            return ""
        start -= self._shift
        length = at.get("query_location_length", 1) if isinstance(at, dict) else 1
        before, rest = self._bytes[:start].decode(errors="replace"), self._bytes[start:].decode(errors="replace")
        marked = self._bytes[start : start + length].decode(errors="replace").split("\n")[0]
        head = before.rpartition("\n")[2]
        line, column = head + rest.partition("\n")[0], len(head)
        shift = max(0, column - _MAX_LINE // 2)
        caret = " " * (column - shift) + "^" * max(1, min(len(marked), _MAX_LINE - (column - shift)))
        return f" (at character {len(before) + 1})\n  {line[shift : shift + _MAX_LINE]}\n  {caret}"


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def near_matches(name: str, known: Iterable[str]) -> str:
    """The known names that are like a wrong one, as the end of a sentence."""
    names = sorted(set(known))[:_MAX_COMPARED]
    lower = {each.lower(): each for each in names}
    found = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if found:
        return f"; did you mean {' or '.join(quoted(each) if '.' in each else repr(each) for each in found)}?"
    if 0 < len(names) <= 20:
        return f"; there are {', '.join(names)}"
    return ""


@contextmanager
def translated(errors: SqlErrors, failures: list[BaseException]) -> Iterator[None]:
    """Raise an error of a scan or a function as itself, and an error of DuckDB as one of Penstock."""
    duckdb = import_duckdb()
    try:
        yield
    except PenstockError:
        raise
    except (duckdb.Error, RuntimeError, ValueError, TypeError, OSError) as error:
        cause = failures[0] if failures else error
        if isinstance(cause, RecursionError):
            raise errors.invalid("the SQL is nested too deeply") from None
        if failures:
            raise cause from None
        if isinstance(error, duckdb.Error):
            raise translate(errors, error) from None
        raise errors.invalid(f"the question cannot be answered: {_first_line(error)}") from None


def translate(errors: SqlErrors, error: Exception) -> PenstockError:
    """An error of DuckDB in our words."""
    import duckdb

    if isinstance(error, duckdb.OutOfMemoryException):
        return errors.invalid(
            "the question needs more memory than its limit; select fewer columns or rows, or raise the limit"
        )
    return errors.invalid(f"the SQL is not valid here: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    text = _PREFIX.sub("", _DUCKDB_POSITION.sub("", str(error))).strip()
    return " ".join(line.strip() for line in text.splitlines() if line.strip())[:500] or type(error).__name__
