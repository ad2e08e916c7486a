"""JSON objects of the format: strict decoding, and sealed ones, which contain their own checksum.

A sealed object has no parent that stores its checksum. It is a JSON document on one line whose last member is
`"crc32c"`, eight hexadecimal digits: the checksum of all bytes before the comma that precedes it.

A checksum protects against damage, not against malice: anyone can compute it. So the decoders here accept only what the
format allows, whatever the checksum says.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding
from penstock.types import Buffer

T = TypeVar("T")

_TAIL = len(',"crc32c":"00000000"}\n')
_INTEGERS = range(1 << 63)


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
    if not isinstance(members, Mapping):
        raise ValueError(f"{cls.__name__}: it is no JSON object")
    found = {}
    for name, (hint, required) in _declared(cls).items():  # type: ignore[arg-type]  # a class is hashable
        if name in members:
            found[name] = _converted(members[name], hint, name)
        elif required:
            raise ValueError(f"{name!r} is missing")
    return cls(**found)


def _converted(value: Any, hint: Any, name: str) -> Any:
    """A JSON value as its declared type."""
    if hint in (int, float, str, bool, NoneType):
        return _scalar(value, hint, name)
    if isinstance(hint, UnionType):
        inner = next(part for part in get_args(hint) if part is not NoneType)
        return None if value is None else _converted(value, inner, name)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_converted(item, parts[0], name) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _converted(item, parts[1], name) for key, item in value.items()}
    if hint is Any:
        return value
    raise ValueError(f"{name!r} has the wrong type")


def _scalar(value: Any, hint: type, name: str) -> Any:
    if hint is int and type(value) is int and value in _INTEGERS:
        return value
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return value
    if hint in (str, bool, NoneType) and type(value) is hint:
        return value
    raise ValueError(f"{name!r} has the wrong type or is out of range")


@cache
def _declared(cls: Any) -> dict[str, tuple[Any, bool]]:
    """The members of a dataclass: each with its type, and whether it has no default."""
    hints = get_type_hints(cls)
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    }


def member_names(cls: Any) -> tuple[str, ...]:
    """The field names of a dataclass."""
    return tuple(_declared(cls))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _tail(body: bytes) -> bytes:
    return b',"crc32c":"%08x"}\n' % crc32c(body)
