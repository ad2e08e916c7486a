"""JSON objects of the format: strict decoding, and sealed ones, which contain their own checksum.

A sealed object has no parent that stores its checksum. It is a JSON document on one line whose last member is
`"crc32c"`, eight hexadecimal digits: the checksum of all bytes before the comma that precedes it.

A checksum protects against damage, not against malice: anyone can compute it. So the decoders here accept only what the
format allows, whatever the checksum says.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding
from penstock.types import Buffer

T = TypeVar("T")

_TAIL = len(',"crc32c":"00000000"}\n')


def seal(document: dict[str, Any]) -> bytes:
    """Encode a document with its checksum."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return body + _tail(body)


def unseal(data: Buffer, where: str) -> dict[str, Any]:
    """Verify and decode a document; raises `CorruptError` that names `where`."""
    data = bytes(data)
    body, tail = data[:-_TAIL], data[-_TAIL:]
    if len(data) <= _TAIL or tail != _tail(body):
        raise corrupt_error(where, "its checksum does not match")
    with decoding(where):
        return load_json(body + b"}")


def decode_sealed(cls: type[T], data: Buffer, where: str) -> T:
    """Verify and decode a sealed object whose members are those of a dataclass; raises `CorruptError`."""
    document = unseal(data, where)
    with decoding(where):
        return from_json(cls, document)


def load_json(data: bytes) -> dict[str, Any]:
    """Decode a JSON object; raises `ValueError` for anything else, such as text that is not Unicode, or NaN."""
    document = json.loads(data.decode(), parse_constant=_reject_constant)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    if b"\\u" in data:  # an escape can make a lone surrogate, which cannot be encoded again
        json.dumps(document, ensure_ascii=False).encode()
    return document


def from_json(cls: type[T], members: Any) -> T:
    """Construct a dataclass from JSON members, ignoring unknown ones, which later versions may write.

    Raises `ValueError` for a missing member and for a value that is not of the declared type. Integers of the format
    have 63 bits and no sign.
    """
    if not isinstance(members, dict):
        raise ValueError(f"{cls.__name__}: it is no JSON object")
    found = {}
    for name, convert, required in _declared(cls):  # type: ignore[arg-type]  # a class is hashable
        if name in members:
            found[name] = convert(members[name], name)
        elif required:
            raise ValueError(f"{name!r} is missing")
    return cls(**found)


Converter = Callable[[Any, str], Any]
"""Checks a JSON value, and returns it as its declared type; the name is for the error."""


@cache
def _declared(cls: Any) -> tuple[tuple[str, Converter, bool], ...]:
    """The members of a dataclass: each with its converter, and whether it has no default."""
    hints = get_type_hints(cls)
    return tuple(
        (field.name, _converter(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    )


def _converter(hint: Any) -> Converter:
    """Built once for each member: a schema may have a hundred thousand fields."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _scalar(_SCALARS[hint])
    if origin is UnionType:
        inner = _converter(parts[0])
        return lambda value, name: None if value is None else inner(value, name)
    if origin is tuple:
        item = _converter(parts[0])
        return lambda value, name: tuple(item(one, name) for one in _instance(value, list, name))
    if origin is Mapping:
        item = _converter(parts[1])
        return lambda value, name: {key: item(one, name) for key, one in _instance(value, dict, name).items()}
    return lambda value, _: from_json(hint, value)


def _scalar(fits: Callable[[Any], bool]) -> Converter:
    def convert(value: Any, name: str) -> Any:
        if not fits(value):
            raise ValueError(f"{name!r} has the wrong type or is out of range")
        return value

    return convert


_SCALARS: dict[Any, Callable[[Any], bool]] = {
    int: lambda value: type(value) is int and 0 <= value < 1 << 63,
    float: lambda value: type(value) in (int, float) and math.isfinite(value),
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    Any: lambda _: True,
}


def _instance(value: Any, expected: type, name: str) -> Any:
    if type(value) is not expected:
        raise ValueError(f"{name!r} has the wrong type")
    return value


@cache
def member_names(cls: Any) -> tuple[str, ...]:
    """The field names of a dataclass."""
    return tuple(name for name, _, _ in _declared(cls))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _tail(body: bytes) -> bytes:
    return b',"crc32c":"%08x"}\n' % crc32c(body)
