"""API keys: what their text carries, and what it is checked for."""

import hashlib
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog._api_key import new_key, parse_key
from penstock.errors import InvalidInputError

LETTERS = string.ascii_letters + string.digits


def test_a_key_is_parsed_to_its_id_and_digest() -> None:
    key = new_key()
    prefix, id, secret, checksum = key.text.split("_")
    assert (prefix, len(id), len(secret), len(checksum)) == ("pen", 12, 43, 6)
    assert parse_key(key.text) == (key.id, key.digest) == (id, hashlib.sha256(secret.encode()).digest())


def test_keys_differ_and_have_256_bits() -> None:
    assert len({new_key().text for _ in range(1000)}) == 1000
    assert 62**43 > 2**256


def test_a_repr_shows_no_secret() -> None:
    key = new_key()
    assert key.text.split("_")[2] not in repr(key)
    assert repr(key.digest) not in repr(key)


@given(st.data())
def test_a_typing_error_is_found_without_a_server(data: st.DataObject) -> None:
    text = new_key().text
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from(LETTERS).filter(lambda each: each != text[place]))
    with pytest.raises(InvalidInputError) as caught:
        parse_key(text[:place] + letter + text[place + 1 :])
    assert text.split("_")[2][:10] not in str(caught.value)


@given(st.text(max_size=80))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_key(text)


@pytest.mark.parametrize(
    "change", [str.lower, lambda text: text[:-1], lambda text: f"{text} ", lambda text: f"x{text}"]
)
def test_a_damaged_copy_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(InvalidInputError):
        parse_key(change(new_key().text))


def test_letters_of_other_alphabets_are_refused() -> None:
    prefix, id, _, checksum = new_key().text.split("_")
    with pytest.raises(InvalidInputError):
        parse_key(f"{prefix}_{id}_{'é' * 43}_{checksum}")


def test_parsing_a_key_imports_nothing_heavy() -> None:
    program = "import sys, penstock.catalog._api_key; print({'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
