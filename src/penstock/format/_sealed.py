"""Sealed JSON: objects that contain their own checksum, because no parent object stores it.

The object is a JSON document on one line. Its last member is `"crc32c"`, eight hexadecimal digits: the checksum of all
bytes before the comma that precedes it.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from penstock.errors import CorruptError
from penstock.format._checksum import crc32c
from penstock.types import Buffer

T = TypeVar("T")

_MEMBER_NAMES: dict[type, tuple[str, ...]] = {}

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
        raise CorruptError(f"{where} is damaged: its checksum does not match. Restore it from a copy of the table")
    document: dict[str, Any] = json.loads(body + b"}")
    return document


def from_members(cls: type[T], members: Mapping[str, Any]) -> T:
    """Construct a dataclass from JSON members, ignoring unknown ones, which later versions may write."""
    return cls(**{name: members[name] for name in member_names(cls) if name in members})


def member_names(cls: type) -> tuple[str, ...]:
    """The field names of a dataclass."""
    if cls not in _MEMBER_NAMES:
        _MEMBER_NAMES[cls] = tuple(field.name for field in fields(cls))
    return _MEMBER_NAMES[cls]


def _tail(body: bytes) -> bytes:
    return b',"crc32c":"%08x"}\n' % crc32c(body)
