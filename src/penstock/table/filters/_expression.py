"""The tree of an Arrow expression.

pyarrow has no way to look inside an expression. Its serialised form, made for pickling, is a record batch: literals and
options of functions are its columns, and the tree is in the metadata of its schema, in prefix order. That form is not
specified, so an expression that does not read as expected has no tree, and its caller assumes nothing about it.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class FieldRef:
    """A column, or a member of a nested one."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Literal:
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True)
class Call:
    """A function of terms."""

    function: str
    arguments: tuple["Term", ...]
    options: dict[str, Any]


Term: TypeAlias = FieldRef | Literal | Call


def parse_expression(expression: pc.Expression) -> Term | None:
    """The tree of an expression; None if it has one that cannot be read."""
    try:
        _, (data,) = expression.__reduce__()
        batch = pa.ipc.open_file(data).get_batch(0)
        tokens = iter(_metadata(batch.schema))
        found = _term(tokens, batch, *next(tokens))
        return found if next(tokens, None) is None else None
    except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError, StopIteration, RecursionError):
        return None


def field_names(term: Term) -> set[str]:
    """The top-level columns that a term refers to."""
    if isinstance(term, FieldRef):
        return {term.path[0]}
    if isinstance(term, Call):
        return set().union(*map(field_names, term.arguments))
    return set()


def referenced_columns(empty: pa.Table, expression: pc.Expression) -> list[str]:
    """The columns that an expression refers to; it must fit a table of all columns and no rows.

    If its tree cannot be read, those without which it does not fit: halves of the columns are left out at a time, so
    a few columns of many are found in a few attempts.
    """
    if (term := parse_expression(expression)) is not None:
        names = field_names(term)
        return [name for name in empty.column_names if name in names]
    if "FieldPath(" in str(expression):  # columns by index: to leave one out would shift the others
        return list(empty.column_names)
    return _needed(empty, expression, empty.column_names)


def _needed(empty: pa.Table, expression: pc.Expression, names: list[str]) -> list[str]:
    if not names or _fits(empty.drop_columns(names), expression):
        return []
    if len(names) == 1:
        return names
    middle = len(names) // 2
    return [*_needed(empty, expression, names[:middle]), *_needed(empty, expression, names[middle:])]


def _fits(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except pa.ArrowInvalid:
        return False
    return True


def _term(tokens: Iterator[tuple[str, str]], batch: pa.RecordBatch, kind: str, value: str) -> Term:
    if kind == "field_ref":
        return FieldRef((value,))
    if kind == "nested_field_ref":
        path = [next(tokens) for _ in range(int(value))]
        if any(kind != "field_ref" for kind, _ in path) or not path:
            raise ValueError(f"a path of {path}")
        return FieldRef(tuple(name for _, name in path))
    if kind == "literal":
        return Literal(batch.column(int(value))[0])
    if kind != "call":
        raise ValueError(f"a term that is a {kind}")
    arguments: list[Term] = []
    options: dict[str, Any] = {}
    while (token := next(tokens))[0] != "end":
        if token[0] == "options":
            scalar = batch.column(int(token[1]))[0]
            options = {name: scalar[name] for name in scalar}
        else:
            arguments.append(_term(tokens, batch, *token))
    if token[1] != value:
        raise ValueError(f"{value} ends as {token[1]}")
    return Call(value, tuple(arguments), options)


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """The metadata of a schema in order, repeated keys included, which `Schema.metadata` leaves out.

    The C data interface stores it as a count, and then the length and the bytes of each key and value.
    """
    capsule = schema.__arrow_c_schema__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = ctypes.cast(get_pointer(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_void_p))[2]
    if address is None:
        return []

    def number() -> int:
        nonlocal address
        address += 4
        return ctypes.c_int32.from_address(address - 4).value

    def text() -> str:
        nonlocal address
        length = number()
        address += length
        return ctypes.string_at(address - length, length).decode()

    return [(text(), text()) for _ in range(number())]
