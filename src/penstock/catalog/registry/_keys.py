"""API keys: creation, revocation, and the check of every request."""

import hmac
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.catalog._api_key import new_key, parse_key
from penstock.catalog.registry import _schema
from penstock.catalog.registry._database import Database
from penstock.catalog.registry._members import check_member_name, no_member
from penstock.catalog.registry._records import KeyInfo, Principal
from penstock.catalog.registry._workspaces import Workspaces
from penstock.errors import AccessDeniedError, InvalidInputError, NotFoundError, escape_controls

_CACHE_S = 3.0
_MAX_CACHED = 10_000
_LAST_USE_S = 30.0
_MAX_NOTE = 200
_UNKNOWN: tuple[Any, ...] = (bytes(32), *[None] * 6)  # an unknown id costs the same comparison
_k, _w, _m = _schema.keys, _schema.workspaces, _schema.members
_COLUMNS = (_k.c.note, _k.c.created_us, _k.c.expires_us, _k.c.revoked_us, _k.c.last_used_us)
_FIND = (
    sa.select(_k.c.digest, _k.c.member, _k.c.expires_us, _k.c.revoked_us, _k.c.workspace_id, _w.c.name, _m.c.role)
    .select_from(
        _k.outerjoin(_w, _w.c.id == _k.c.workspace_id).outerjoin(
            _m, sa.and_(_m.c.workspace_id == _k.c.workspace_id, _m.c.name == _k.c.member)
        )
    )
    .where(_k.c.id == sa.bindparam("id"))
)
_used: sa.BindParameter[int] = sa.bindparam("used")
_LAST_USE = (
    sa.update(_k)
    .where(_k.c.id == sa.bindparam("key"), sa.or_(_k.c.last_used_us.is_(None), _k.c.last_used_us < _used))
    .values(last_used_us=_used)
)


@dataclass(frozen=True)
class _Verified:
    principal: Principal
    expires_us: int | None
    checked_at: float


class Keys:
    """The keys of all workspaces and of the server's admin; thread-safe."""

    def __init__(self, control: Database, workspaces: Workspaces, now_us: Callable[[], int]) -> None:
        self._control = control
        self._workspaces = workspaces
        self._now_us = now_us
        self._verified: dict[tuple[str, bytes], _Verified] = {}
        self._changed_at = time.monotonic()  # what was verified before is looked up again
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}
        self._noted: dict[str, float] = {}

    def authenticate(self, text: str) -> Principal:
        """Who holds a key; raises one and the same `AccessDeniedError` for every key that is not valid."""
        id, digest = _parse(text)
        now = time.monotonic()
        verified = self._verified.get((id, digest))
        if verified is None or verified.checked_at <= max(self._changed_at, now - _CACHE_S):
            verified = self._verify(id, digest, now)
        now_us = self._now_us()
        if verified.expires_us is not None and verified.expires_us <= now_us:
            raise _refused()
        if now - self._noted.get(id, -_LAST_USE_S) >= _LAST_USE_S:
            with self._lock:
                self._noted[id] = now
                self._used[id] = now_us
        return verified.principal

    def is_known(self, text: str) -> bool:
        """Whether a key was valid when it was looked up last; raises `AccessDeniedError` for a text that is no key."""
        return _parse(text) in self._verified

    def _verify(self, id: str, digest: bytes, now: float) -> _Verified:
        rows = self._control.look_up(_FIND, id)
        row = rows[0] if rows else _UNKNOWN
        stored, member, expires_us, revoked_us, workspace_id, workspace, role = row
        matches = hmac.compare_digest(stored, digest)
        if not matches or not rows or revoked_us is not None or (workspace_id is not None and role is None):
            self._verified.pop((id, digest), None)
            raise _refused()
        verified = _Verified(Principal(id, member, workspace, role or "admin"), expires_us, now)
        if len(self._verified) >= _MAX_CACHED:
            self._verified.clear()
        self._verified[id, digest] = verified
        return verified

    def create(self, workspace: str | None, member: str, *, expires_s: float | None, note: str) -> tuple[str, KeyInfo]:
        """A new key of a member, or of the server's admin if `workspace` is None; the text is not stored."""
        with self._control.transaction() as connection:
            return self.create_in(connection, workspace, member, expires_s=expires_s, note=note)

    def create_in(
        self, connection: sa.Connection, workspace: str | None, member: str, *, expires_s: float | None, note: str
    ) -> tuple[str, KeyInfo]:
        """Create a key in the caller's transaction."""
        check_member_name(member)
        if len(note) > _MAX_NOTE or not note.isprintable():
            raise InvalidInputError(f"the note of a key has at most {_MAX_NOTE} printable letters; shorten it")
        if expires_s is not None and not 0 < expires_s < 1e10:
            raise InvalidInputError(f"a key cannot expire in {expires_s} s; give a positive number of seconds")
        workspace_id = None
        if workspace is not None:
            workspace_id = self._workspaces.id_in(connection, workspace)
            is_member = sa.select(_m.c.name).where(_m.c.workspace_id == workspace_id, _m.c.name == member)
            if connection.execute(is_member).first() is None:
                raise NotFoundError(no_member(workspace, member))
        key, created_us = new_key(), self._now_us()
        expires_us = None if expires_s is None else created_us + int(expires_s * 1e6)
        info = KeyInfo(key.id, member, workspace, note, created_us, expires_us, revoked_us=None, last_used_us=None)
        values = {name: getattr(info, name) for name in ("id", "member", "note", "created_us", "expires_us")}
        connection.execute(sa.insert(_k).values(values | {"digest": key.digest, "workspace_id": workspace_id}))
        return key.text, info

    def all(self, workspace: str | None) -> list[KeyInfo]:
        """The keys of a workspace, or of the server's admin, revoked and expired ones included; newest last."""
        id = None if workspace is None else self._workspaces.find(workspace).id
        query = sa.select(_k.c.id, _k.c.member, *_COLUMNS).where(_k.c.workspace_id.is_not_distinct_from(id))
        rows = self._control.read(query.order_by(_k.c.created_us, _k.c.id))
        return [KeyInfo(key_id, member, workspace, *rest) for key_id, member, *rest in rows]

    def revoke(self, workspace: str | None, key_id: str) -> KeyInfo:
        """Refuse a key from now on: here at once, in other processes within 3 s. Revoking again changes nothing."""
        revoked_us = sa.func.coalesce(_k.c.revoked_us, self._now_us())
        with self._control.transaction() as connection:
            id = None if workspace is None else self._workspaces.id_in(connection, workspace)
            own = (_k.c.id == escape_controls(key_id), _k.c.workspace_id.is_not_distinct_from(id))
            row = connection.execute(
                sa.update(_k).where(*own).values(revoked_us=revoked_us).returning(_k.c.member, *_COLUMNS)
            ).first()
        if row is None:
            owner = "the server's admin" if workspace is None else f"workspace {workspace!r}"
            raise NotFoundError(f"{owner} has no key {key_id!r}; list the keys for their ids")
        self.forget_verified()
        member, *rest = row
        return KeyInfo(key_id, member, workspace, *rest)

    def forget_verified(self) -> None:
        """Look every key up again, because rights have changed."""
        self._changed_at = time.monotonic()

    def flush(self) -> None:
        """Write the last uses."""
        with self._lock:
            used = dict(self._used)
            horizon = time.monotonic() - _LAST_USE_S
            self._noted = {id: at for id, at in self._noted.items() if at > horizon}
        if not used:
            return
        # In one order, so that processes do not wait for each other in a circle.
        parameters = [{"key": id, "used": at} for id, at in sorted(used.items())]
        with self._control.transaction() as connection:
            connection.execute(_LAST_USE, parameters)
        with self._lock:
            self._used = {id: at for id, at in self._used.items() if used.get(id) != at}


def _parse(text: str) -> tuple[str, bytes]:
    try:
        return parse_key(text)
    except InvalidInputError:
        raise _refused() from None


def _refused() -> AccessDeniedError:
    return AccessDeniedError(
        "the API key is not valid: it is mistyped, unknown, expired or revoked; ask an admin of your workspace for "
        "another one"
    )
