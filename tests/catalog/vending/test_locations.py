"""Only locations of the server reach a policy, whatever text is given."""

import json
import re
from fnmatch import fnmatchcase
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog import Access
from penstock.catalog.vending._gcs import access_boundary
from penstock.catalog.vending._locations import Kind, Locations, make_locations, split
from penstock.catalog.vending._s3 import session_policy
from penstock.errors import InvalidInputError

ID = "0123456789abcdef" * 2
S3 = make_locations("s3://lake/teams", ["s3://archive/old", "s3://lake/registered"], "s3")
HOSTILE = ["*", "?", "$", "${aws:username}", '"', "\\", "'", "\n", "\0", "/", "//", "..", ".", "%2e%2e", " ", "#", "@"]
HOSTILE += ["é", "\u202e", "\ud800", "||", "')", '"}]}', "s3://", "archive", "teams", ID, ID[:31], ID.upper(), "lake"]
TEXTS = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=8).map("".join)
STARTS = st.sampled_from(["", "s3://lake/teams/", "s3://lake/", "s3://archive/old", "s3://archive/old/", "s3://"])
ACCEPTED = st.sampled_from([f"s3://lake/teams/{ID}", "s3://archive/old", "s3://archive/old/a", "s3://lake/registered"])
LOCATIONS = ACCEPTED | st.tuples(STARTS, TEXTS).map("".join)
KEYS = st.tuples(
    st.sampled_from(["teams/", f"teams/{ID}", f"teams/{ID}/", "registered", "old", "old/", ""]), TEXTS
).map("".join)
ACCESSES = st.sampled_from(get_args(Access))


def is_accepted(locations: Locations, location: str) -> bool:
    try:
        locations.check(location)
    except InvalidInputError:
        return False
    return True


@given(location=LOCATIONS, access=ACCESSES, bucket=st.sampled_from(["lake", "archive", "other"]), key=KEYS)
def test_a_policy_reaches_the_keys_below_its_location_and_no_others(
    location: str, access: Access, bucket: str, key: str
) -> None:
    if not is_accepted(S3, location):
        return
    assert re.fullmatch(rf"s3://lake/teams/{'[0-9a-f]' * 32}|s3://(archive/old|lake/registered)(/[\w.=-]+)*", location)
    statements = json.loads(session_policy("aws", split(location), access))["Statement"]
    assert len(session_policy("aws", split(location), access)) <= 2048
    is_below = f"s3://{bucket}/{key}".startswith(f"{location}/")
    assert reaches(statements[0]["Resource"], f"arn:aws:s3:::{bucket}/{key}") == is_below
    assert statements[1]["Resource"] == f"arn:aws:s3:::{split(location).bucket}"
    lists = statements[1]["Resource"].endswith(f":{bucket}") and reaches(list_pattern(statements[1]), key)
    assert lists == is_below


def reaches(pattern: str, text: str) -> bool:
    """As policies match: `*` is any text, and `?` any character."""
    assert not set("?[$") & set(pattern)
    return fnmatchcase(text, pattern)


def list_pattern(statement: dict[str, Any]) -> str:
    return str(statement["Condition"]["StringLike"]["s3:prefix"])


@given(location=LOCATIONS, access=ACCESSES)
def test_a_boundary_has_no_part_that_its_location_does_not_name(location: str, access: Access) -> None:
    locations = make_locations("gs://lake/teams", ["gs://archive/old"], "gs")
    location = location.replace("s3://", "gs://")
    if not is_accepted(locations, location):
        return
    [rule] = access_boundary(split(location), access).rules
    bucket, path = split(location)
    assert rule.availability_condition.expression == (
        f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{path}') || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('{path}')"
    )
    assert rule.availability_condition.expression.count("'") == 8


@given(location=LOCATIONS)
def test_only_ids_are_removed(location: str) -> None:
    try:
        S3.check_removable(location)
    except InvalidInputError:
        return
    assert re.fullmatch(r"s3://(lake/teams|archive/old|lake/registered)/[0-9a-f]{32}", location)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_new_locations_are_accepted_and_all_different(kind: Kind) -> None:
    storages = {"folder": "/data/lake", "container": "az://lake", "memory": "memory://lake"}
    locations = make_locations(storages.get(kind, f"{kind}://lake/teams/"), [], kind)
    new = {locations.new() for _ in range(100)}
    assert len(new) == 100
    for location in new:
        locations.check(location)
        locations.check_removable(location)
        with pytest.raises(InvalidInputError):
            locations.check(f"{location}/inner")
        with pytest.raises(InvalidInputError):
            locations.check(f"{location}0")


def test_what_overlaps_with_the_storage_cannot_be_registered() -> None:
    locations = make_locations("s3://lake/teams", ["s3://lake"], "s3")
    locations.check("s3://lake/elsewhere/table")
    for location in ("s3://lake", "s3://lake/teams", f"s3://lake/teams/{ID}/data", "s3://lake/teams/table"):
        with pytest.raises(InvalidInputError, match="overlaps"):
            locations.check(location)


@pytest.mark.parametrize(
    ("storage", "kind", "locations"),
    [
        ("s3://lake/teams", "s3", [f"s3://lake/teams/{ID}"]),
        ("az://lake", "container", [f"az://lake-{ID}"]),
        (
            "/srv/tables",
            "folder",
            [f"/srv/tables/{ID}", f"file:///srv/tables/{ID}", "file:///srv", "file:///srv/tables"],
        ),
        ("file:///srv/tables", "folder", [f"/srv/tables/{ID}", "/srv"]),
    ],
)
def test_the_locations_of_new_tables_cannot_be_registered(storage: str, kind: Kind, locations: list[str]) -> None:
    allowed = {"s3": "s3://lake", "container": "az://lake", "folder": "/srv"}[kind]
    checker = make_locations(storage, [allowed], kind)
    for location in locations:
        with pytest.raises(InvalidInputError, match="overlaps"):
            checker.check_registrable(location)


def test_escapes_in_the_path_of_a_folder_are_refused() -> None:
    locations = make_locations("/srv/tables", ["/srv/allowed"], "folder")
    locations.check_registrable("file:///srv/allowed/table")
    for location in ("file:///srv/allowed/%2e%2e/tables", "file:///srv/%74ables/x", "/srv/allowed/a%20b"):
        with pytest.raises(InvalidInputError, match="not a location"):
            locations.check_registrable(location)


@pytest.mark.parametrize(
    "storage",
    [
        *("s3://lake/a*", "s3://lake/a?b", "s3://lake/${aws:username}", "s3://lake/a b", "s3://lake/.hidden"),
        *("s3://LAKE/a", "s3://la/a", "gs://lake/a", f"s3://lake/{'a' * 400}", "s3://lake/é"),
    ],
)
def test_storages_and_locations_with_special_characters_are_refused(storage: str) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot hold|must be followed"):
        make_locations(storage, [], "s3")
    with pytest.raises(InvalidInputError, match=r"cannot hold|must be followed"):
        make_locations("s3://lake", [storage], "s3")


def test_the_longest_location_has_a_policy_that_fits() -> None:
    location = f"s3://{'b' * 63}/".ljust(400, "a")
    make_locations(location, [], "s3")
    assert len(session_policy("aws-us-gov", split(f"{location}/{ID}"), "write")) <= 2048
