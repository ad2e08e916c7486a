"""What is said over HTTP: a question for a range of an object, and whether an answer is that range."""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.types import ByteRange

PARTIAL_CONTENT, SERVER_ERROR, NOT_KNOWN = 206, 500, 0
HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 << 10
_SERVERS = 64
_STATUS = re.compile(rb"http/1\.1 (\d{3}) ")
_TOLD = re.compile(rb"\r\n(content-length|content-range|content-encoding|transfer-encoding|connection): *([^\r]*)")
_ENCODED = {b"content-encoding", b"transfer-encoding"}


class Question(NamedTuple):
    """Whom to ask, and what."""

    whom: tuple[str, int]
    """Host and port."""
    words: bytes


def ask_for(address: str, wanted: ByteRange, etag: str | None) -> Question:
    """A question for a range of the object at a URL without TLS, if it still has the etag."""
    server, _, target = address.removeprefix("http://").partition("/")
    condition = "" if etag is None else f"If-Match: {etag}\r\n"
    span = f"{wanted.start}-{wanted.end - 1}"
    words = f"GET /{target} HTTP/1.1\r\nHost: {server}\r\nRange: bytes={span}\r\n{condition}\r\n"
    return Question(_whom(server), words.encode("ascii"))


@lru_cache(maxsize=_SERVERS)
def _whom(server: str) -> tuple[str, int]:
    url = urlsplit(f"//{server}")
    return url.hostname or "", url.port or 80


class Head(NamedTuple):
    """What an answer says before its body."""

    status: int
    """`PARTIAL_CONTENT` only if the body is the range that was wanted."""
    object_bytes: int | None
    """How long the whole object is, where that is said."""
    closes: bool
    """Whether the connection ends with the answer."""


def read_head(said: bytes, wanted: ByteRange) -> Head:
    """What the head of an answer, without its end, says to the question for a range."""
    lines = said.lower()
    status = _STATUS.match(lines)
    if status is None or int(status[1]) != PARTIAL_CONTENT:
        return Head(NOT_KNOWN if status is None else int(status[1]), None, closes=True)
    told = dict(_TOLD.findall(lines))
    span, _, whole = told.get(b"content-range", b"").partition(b"/")
    length = told.get(b"content-length", b"").strip()
    if not length.isdigit() or not span or not told.keys().isdisjoint(_ENCODED):
        return Head(NOT_KNOWN, None, closes=True)
    fits = int(length) == wanted.length and span == b"bytes %d-%d" % (wanted.start, wanted.end - 1)
    object_bytes = int(whole) if whole.strip().isdigit() else None
    return Head(PARTIAL_CONTENT if fits else NOT_KNOWN, object_bytes, told.get(b"connection", b"").strip() == b"close")
