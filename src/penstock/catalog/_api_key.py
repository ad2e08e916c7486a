"""API keys: their text, and the hash by which a server knows them."""

import hashlib
import secrets
import string
import zlib
from dataclasses import dataclass, field

from penstock.errors import InvalidInputError

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LETTERS = frozenset(_ALPHABET)
_ID_LENGTH = 12
_SECRET_LENGTH = 43  # of 62 letters: 256 random bits
_CHECKSUM_LENGTH = 6
_PREFIX = "pen"


@dataclass(frozen=True)
class ApiKey:
    """A new key; its text is shown once, and a server stores only the id and the digest."""

    text: str = field(repr=False)
    id: str
    digest: bytes = field(repr=False)
    """SHA-256 of the secret."""


def new_key() -> ApiKey:
    """Create a random key."""
    id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    body = f"{_PREFIX}_{id}_{secret}"
    return ApiKey(f"{body}_{_checksum(body)}", id, _digest(secret))


def parse_key(text: str) -> tuple[str, bytes]:
    """The id and the digest of a key; raises `InvalidInputError` without repeating the text.

    The checksum finds typing errors and truncated copies before a server is asked.
    """
    prefix, id, secret, checksum = parts if len(parts := text.split("_")) == 4 else ("", "", "", "")
    lengths = (len(id), len(secret), len(checksum))
    if prefix != _PREFIX or lengths != (_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH):
        raise InvalidInputError(
            "the API key is incomplete or is no Penstock key; copy all of pen_<id>_<secret>_<check>"
        )
    if not _LETTERS.issuperset(id + secret) or checksum != _checksum(f"{prefix}_{id}_{secret}"):
        raise InvalidInputError("the checksum of the API key does not match, so a letter differs; copy the key again")
    return id, _digest(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _checksum(body: str) -> str:
    number, letters = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, place = divmod(number, len(_ALPHABET))
        letters = _ALPHABET[place] + letters
    return letters
