"""Keys and members: who is let in, with which role, and until when."""

import hmac
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.catalog._api_key import new_key
from penstock.catalog.registry import Principal, Registry
from penstock.errors import AccessDeniedError, InvalidInputError, NotFoundError
from tests.catalog.registry.conftest import Clock


@contextmanager
def refused() -> Iterator[None]:
    """Every key that is not valid is refused in the same words."""
    with pytest.raises(
        AccessDeniedError, match=r"^the API key is not valid: it is mistyped, unknown, expired or revoked"
    ):
        yield


def wait_until_refused(registry: Registry, text: str) -> float:
    start = time.monotonic()
    while time.monotonic() - start < 60:
        try:
            registry.authenticate(text)
        except AccessDeniedError:
            return time.monotonic() - start
        time.sleep(0.05)
    raise AssertionError("the key is still accepted")


def test_a_key_has_the_role_of_its_member(registry: Registry) -> None:
    registry.set_member("team", "ann@example.org", "writer")
    text, info = registry.create_key("team", "ann@example.org", note="laptop")
    assert registry.authenticate(text) == Principal(info.id, "ann@example.org", "team", "writer")
    assert not registry.authenticate(text).is_server_admin
    assert (info.workspace, info.note, info.expires_us, info.revoked_us) == ("team", "laptop", None, None)
    assert registry.keys("team") == [info]
    assert registry.keys(None) == []


def test_a_key_without_workspace_is_the_servers_admin(registry: Registry) -> None:
    text, info = registry.create_key(None, "operator")
    assert registry.authenticate(text) == Principal(info.id, "operator", None, "admin")
    assert registry.authenticate(text).is_server_admin
    assert registry.keys(None) == [info]
    assert registry.keys("team") == []
    registry.revoke_key(None, info.id)
    with refused():
        registry.authenticate(text)


def test_bad_keys_are_refused_in_the_same_words(registry: Registry) -> None:
    registry.set_member("team", "ann", "reader")
    text, _ = registry.create_key("team", "ann")
    for wrong in ("", "pen", text[:-1], text.lower(), new_key().text, "pen_\0_é_\ud800"):
        with refused():
            registry.authenticate(wrong)


def test_an_unknown_id_costs_the_same_comparison(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return original(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    text, _ = registry.create_key(None, "operator")
    registry.authenticate(text)
    with refused():
        registry.authenticate(new_key().text)
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32), (32, 32)]


def test_the_right_id_with_another_secret_is_refused(registry: Registry) -> None:
    _, info = registry.create_key(None, "operator")
    other = new_key()
    with registry._control.transaction() as connection:  # a valid checksum, a known id, the digest of another secret
        connection.execute(sa.text("UPDATE keys SET id = :id WHERE id = :old"), {"id": other.id, "old": info.id})
    with refused():
        registry.authenticate(other.text)


def test_a_key_expires(registry: Registry, clock: Clock) -> None:
    text, info = registry.create_key(None, "operator", expires_s=60)
    assert info.expires_us == int((clock.now + 60) * 1e6)
    registry.authenticate(text)
    clock.now += 59.999
    registry.authenticate(text)
    clock.now += 0.001
    with refused():  # though the answer from before is cached
        registry.authenticate(text)


def test_a_revoked_key_is_refused_here_at_once_and_elsewhere_within_5_s(registry: Registry, url: str) -> None:
    registry.set_member("team", "ann", "reader")
    text, info = registry.create_key("team", "ann")
    elsewhere = Registry(url)
    try:
        elsewhere.authenticate(text)
        registry.authenticate(text)
        revoked = registry.revoke_key("team", info.id)
        assert revoked.revoked_us is not None
        with refused():
            registry.authenticate(text)
        assert wait_until_refused(elsewhere, text) < 5
        assert registry.revoke_key("team", info.id).revoked_us == revoked.revoked_us, "revoking again changes nothing"
    finally:
        elsewhere.close()


def test_a_changed_role_and_a_removed_member_take_effect_within_5_s(registry: Registry, url: str) -> None:
    registry.set_member("team", "ann", "admin")
    text, _ = registry.create_key("team", "ann")
    elsewhere = Registry(url)
    try:
        assert elsewhere.authenticate(text).role == "admin"
        registry.set_member("team", "ann", "reader")
        assert registry.authenticate(text).role == "reader"
        start = time.monotonic()
        while elsewhere.authenticate(text).role != "reader":
            assert time.monotonic() - start < 5
            time.sleep(0.05)
        registry.remove_member("team", "ann")
        with refused():
            registry.authenticate(text)
        assert wait_until_refused(elsewhere, text) < 5
        registry.set_member("team", "ann", "reader")
        with refused():  # keys of a removed member stay revoked
            registry.authenticate(text)
    finally:
        elsewhere.close()


def test_a_key_ends_with_its_workspace(registry: Registry) -> None:
    registry.set_member("team", "ann", "admin")
    text, _ = registry.create_key("team", "ann")
    registry.authenticate(text)
    registry.drop_workspace("team")
    registry.create_workspace("team")
    registry.set_member("team", "ann", "admin")
    with refused():
        registry.authenticate(text)


def test_a_cached_key_costs_no_query(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = registry.create_key(None, "operator")
    looked_up: list[str] = []
    original = registry._control.look_up

    def look_up(statement: sa.Select[Any], value: str) -> list[Any]:
        looked_up.append(value)
        return original(statement, value)

    monkeypatch.setattr(registry._control, "look_up", look_up)
    for _ in range(100):
        registry.authenticate(text)
    assert 1 <= len(looked_up) < 50  # one, unless the machine is very busy


def test_the_last_use_is_written_later(registry: Registry, clock: Clock) -> None:
    text, info = registry.create_key(None, "operator")
    assert info.last_used_us is None
    clock.now += 10
    registry.authenticate(text)
    registry.flush()
    [shown] = registry.keys(None)
    assert shown.last_used_us == int(clock.now * 1e6)
    clock.now += 10
    registry.authenticate(text)
    registry.flush()
    assert registry.keys(None) == [shown], "written at most every 30 s of real time"


def test_what_is_stored_and_logged_holds_no_secret(
    registry: Registry, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text, info = registry.create_key(None, "operator")
    registry.authenticate(text)
    secret = text.split("_")[2]
    rows = registry._control.read(sa.text("SELECT * FROM keys"))
    assert info.id in str(rows)
    assert secret not in str(rows)
    assert secret not in caplog.text
    assert secret not in repr(info) + repr(registry.authenticate(text))


def test_only_members_get_keys(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="no member 'bob'; add them first"):
        registry.create_key("team", "bob")
    with pytest.raises(NotFoundError, match="no workspace 'nowhere'"):
        registry.create_key("nowhere", "bob")
    for id in ("abc", "a\0b", "\ud800", ""):
        with pytest.raises(NotFoundError, match="has no key"):
            registry.revoke_key("team", id)
    text, info = registry.create_key(None, "operator")
    with pytest.raises(NotFoundError):  # the key of another owner
        registry.revoke_key("team", info.id)
    registry.authenticate(text)


@pytest.mark.parametrize("name", ["", " ann", "a\nb", "a\0b", "\ud800", "x" * 255])
def test_names_of_members_fit_on_a_line(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidInputError):
        registry.set_member("team", name, "reader")
    with pytest.raises(InvalidInputError):
        registry.create_key(None, name)


def test_bad_arguments_of_keys_are_refused(registry: Registry) -> None:
    for expires_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError):
            registry.create_key(None, "operator", expires_s=expires_s)
    with pytest.raises(InvalidInputError):
        registry.create_key(None, "operator", note="\0")
    with pytest.raises(InvalidInputError, match="no role"):
        registry.set_member("team", "ann", "owner")  # type: ignore[arg-type]


def test_members_are_listed_with_their_roles(registry: Registry) -> None:
    bob = registry.set_member("team", "bob", "reader")
    ann = registry.set_member("team", "ann", "admin")
    assert registry.members("team") == [ann, bob]
    changed = registry.set_member("team", "bob", "writer")
    assert (changed.role, changed.created_us) == ("writer", bob.created_us)
    registry.remove_member("team", "ann")
    assert registry.members("team") == [changed]
    with pytest.raises(NotFoundError):
        registry.remove_member("team", "ann")
    with pytest.raises(NotFoundError):
        registry.members("nowhere")
