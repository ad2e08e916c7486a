"""The text of API keys (stand-in until the registry's file is merged)."""

import hashlib
import re
import zlib

from penstock.errors import InvalidInputError

_KEY = re.compile(r"pen_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def checksum(text: str) -> str:
    value, found = zlib.crc32(text.encode()), ""
    for _ in range(6):
        value, digit = divmod(value, 62)
        found = _DIGITS[digit] + found
    return found


def parse_key(text: str) -> tuple[str, bytes]:
    match = _KEY.fullmatch(text)
    if match is None or checksum(text[:-7]) != match[3]:
        raise InvalidInputError("its checksum does not fit; copy it again")
    return match[1], hashlib.sha256(match[2].encode()).digest()
