"""Names of tables: what is written is read back, and what some store would change is refused with a way out."""

import re
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.catalog import Address, is_address
from penstock.errors import InvalidInputError

INNER = string.ascii_lowercase + string.digits + "._-"
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?", fullmatch=True).filter(lambda name: ".." not in name)


@given(workspace=NAMES, table=NAMES)
def test_an_address_is_read_as_it_is_written(workspace: str, table: str) -> None:
    address = Address(workspace, table)
    assert is_address(str(address))
    assert Address.parse(str(address)) == address
    assert Address.parse(f"penstock://{workspace}/{table}") == address


@given(name=st.text(max_size=70) | st.text(INNER + "A/~ \n", max_size=70))
@example("..")
@example("a..b")
@example("a.")
@example("a\n")
@example("a" * 64)
@example("-a")
@example("ａ")
def test_a_name_is_safe_or_refused(name: str) -> None:
    safe = (
        0 < len(name) <= 63
        and set(name) <= set(INNER)
        and name[0] not in "._-"
        and name[-1] != "."
        and ".." not in name
    )
    for parts in [(name, "table"), ("workspace", name)]:
        if safe:
            assert Address(*parts) == Address.parse("penstock://{}/{}".format(*parts))
            continue
        with pytest.raises(InvalidInputError, match="write penstock://"):
            Address(*parts)
        with pytest.raises(InvalidInputError, match="write penstock://"):
            Address.parse("penstock://{}/{}".format(*parts))


@given(workspace=NAMES, table=NAMES)
def test_capitals_are_refused_with_the_name_to_write(workspace: str, table: str) -> None:
    assume((workspace + table).upper() != workspace + table)  # digits have no capitals
    with pytest.raises(InvalidInputError, match=re.escape(f"write penstock://{workspace}/{table}") + "$"):
        Address.parse(f"penstock://{workspace.upper()}/{table.upper()}")


@pytest.mark.parametrize(
    "text",
    [
        "", "org/imagenet", "penstock:/org/imagenet", "penstock://", "penstock:///", "penstock://org", "penstock://org/",
        "penstock:///imagenet", "penstock://org/imagenet/", "penstock://org/imagenet/train", "penstock://org//imagenet",
        "penstock://org/imagenet@3", "penstock://org/imagenet?version=3", "penstock://org/../imagenet",
        "penstock://user:key@org/imagenet", "s3://org/imagenet", "PENSTOCK://org/imagenet",
    ],
)  # fmt: skip
def test_what_is_not_one_table_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write penstock://workspace/table"):
        Address.parse(text)


def test_only_our_scheme_is_meant_for_the_catalog() -> None:
    assert is_address("penstock://org/imagenet")
    assert is_address("penstock://Wrong But Ours")
    for text in ["", "org/imagenet", "s3://penstock/x", "./penstock://", "penstock:org", "/penstock://org/imagenet"]:
        assert not is_address(text)


def test_addresses_sort_by_workspace_and_then_by_table() -> None:
    names = [("b", "a"), ("a", "b"), ("a-b", "a"), ("a", "a")]
    assert sorted(Address(*name) for name in names) == [Address(*name) for name in sorted(names)]
