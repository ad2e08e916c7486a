"""JSON objects that carry their own checksum: those that no parent vouches for.

The object is one JSON document on one line. Its last member is `"crc32c"`, eight hexadecimal digits: the checksum of
all bytes before the comma that precedes it.
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
    """Write a document with its checksum."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return body + _tail(body)


def unseal(data: Buffer, where: str) -> dict[str, Any]:
    """Read a document back; what differs by one bit is `CorruptError` that names `where`."""
    data = bytes(data)
    body, tail = data[:-_TAIL], data[-_TAIL:]
    if len(data) <= _TAIL or tail != _tail(body):
        raise CorruptError(f"{where} is damaged: its checksum does not match. Restore it from a copy of the table")
    document: dict[str, Any] = json.loads(body + b"}")
    return document


def known(cls: type[T], members: Mapping[str, Any]) -> T:
    """Make a value from those members that it has; later writers may say more, and it is passed over."""
    return cls(**{name: members[name] for name in member_names(cls) if name in members})


def member_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's members."""
    if cls not in _MEMBER_NAMES:
        _MEMBER_NAMES[cls] = tuple(field.name for field in fields(cls))
    return _MEMBER_NAMES[cls]


def _tail(body: bytes) -> bytes:
    return b',"crc32c":"%08x"}\n' % crc32c(body)
