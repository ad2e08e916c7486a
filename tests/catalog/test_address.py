"""Table addresses round trip, and invalid ones are rejected with a suggestion."""

import re
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.catalog import TableAddress, is_table_address
from penstock.errors import InvalidInputError

INNER = string.ascii_lowercase + string.digits + "._-"
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9_-])?", fullmatch=True).filter(lambda name: ".." not in name)


@given(workspace=NAMES, table=NAMES)
def test_an_address_round_trips(workspace: str, table: str) -> None:
    address = TableAddress(workspace, table)
    assert is_table_address(str(address))
    assert TableAddress.parse(str(address)) == address
    assert TableAddress.parse(f"penstock://{workspace}/{table}") == address


@given(name=st.text(max_size=70) | st.text(INNER + "A/~ \n", max_size=70))
@example("..")
@example("a..b")
@example("a.")
@example("a\n")
@example("a" * 64)
@example("-a")
@example("ａ")
def test_a_name_is_portable_or_rejected(name: str) -> None:
    portable = (
        0 < len(name) <= 63
        and set(name) <= set(INNER)
        and name[0] not in "._-"
        and name[-1] != "."
        and ".." not in name
    )
    for parts in [(name, "table"), ("workspace", name)]:
        if portable:
            assert TableAddress(*parts) == TableAddress.parse("penstock://{}/{}".format(*parts))
            continue
        with pytest.raises(InvalidInputError, match="write penstock://"):
            TableAddress(*parts)
        with pytest.raises(InvalidInputError, match="write penstock://"):
            TableAddress.parse("penstock://{}/{}".format(*parts))


@given(workspace=NAMES, table=NAMES)
def test_upper_case_is_rejected_with_the_lower_case_address(workspace: str, table: str) -> None:
    assume((workspace + table).upper() != workspace + table)  # names of digits have no upper case
    with pytest.raises(InvalidInputError, match=re.escape(f"write penstock://{workspace}/{table}") + "$"):
        TableAddress.parse(f"penstock://{workspace.upper()}/{table.upper()}")


@pytest.mark.parametrize(
    "text",
    [
        "", "org/imagenet", "penstock:/org/imagenet", "penstock://", "penstock:///", "penstock://org", "penstock://org/",
        "penstock:///imagenet", "penstock://org/imagenet/", "penstock://org/imagenet/train", "penstock://org//imagenet",
        "penstock://org/imagenet@3", "penstock://org/imagenet?version=3", "penstock://org/../imagenet",
        "penstock://user:key@org/imagenet", "s3://org/imagenet", "PENSTOCK://org/imagenet",
    ],
)  # fmt: skip
def test_text_that_does_not_name_one_table_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write penstock://workspace/table"):
        TableAddress.parse(text)


def test_only_the_penstock_scheme_is_an_address() -> None:
    assert is_table_address("penstock://org/imagenet")
    assert is_table_address("penstock://Wrong But Ours")
    for text in ["", "org/imagenet", "s3://penstock/x", "./penstock://", "penstock:org", "/penstock://org/imagenet"]:
        assert not is_table_address(text)


def test_addresses_sort_by_workspace_and_then_by_table() -> None:
    names = [("b", "a"), ("a", "b"), ("a-b", "a"), ("a", "a")]
    assert sorted(TableAddress(*name) for name in names) == [TableAddress(*name) for name in sorted(names)]
