"""The registry of a server: workspaces, members, API keys, tables and the audit log."""

import time
from collections.abc import Callable

import sqlalchemy as sa

from penstock.catalog.registry._audit import AuditLog, Flusher
from penstock.catalog.registry._database import Database, control_url
from penstock.catalog.registry._keys import Keys
from penstock.catalog.registry._members import Members
from penstock.catalog.registry._records import AuditEvent, KeyInfo, MemberInfo, Principal, Role, WorkspaceInfo
from penstock.catalog.registry._tables import Workspace
from penstock.catalog.registry._workspaces import Workspaces
from penstock.errors import PenstockError

_WEEK_S = 7 * 24 * 3600.0
# The first process to insert the row wins; others wait for its transaction.
_BOOTSTRAP = sa.text("INSERT INTO settings (name, value) VALUES ('bootstrapped_us', :now) ON CONFLICT DO NOTHING")


class Registry:
    """All that a server knows, on PostgreSQL or SQLite; any number of threads and processes may share a database.

    `url` is `postgresql://user:password@host/database`, `sqlite:///file`, or a path; `clock` gives the seconds since
    1970, `retention_s` for how long dropped tables can be restored, and `on_audit_dropped` is called for every audit
    event that is lost with the database. Call `migrate` first.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        retention_s: float = _WEEK_S,
        on_audit_dropped: Callable[[], None] = lambda: None,
    ) -> None:
        def now_us() -> int:
            return int(clock() * 1e6)

        self._now_us = now_us
        self._retention_s = retention_s
        self._control = Database(control_url(url))
        self._workspaces = Workspaces(self._control, now_us)
        self._members = Members(self._control, self._workspaces, now_us)
        self._keys = Keys(self._control, self._workspaces, now_us)
        self.is_known_key = self._keys.is_known
        """Whether a key was valid when it was looked up last; reads no database."""
        self._audit = AuditLog(self._control, self._workspaces, on_audit_dropped)
        self._flusher = Flusher(self.flush)

    def migrate(self) -> None:
        """Create or upgrade the databases; processes that start at once take turns, and a newer database is refused."""
        self._workspaces.migrate()

    def bootstrap(self) -> str | None:
        """Create the workspace "default" and a key of the server's admin, once in the life of the database.

        Returns the text of the key that time, else None, in whichever process.
        """
        with self._control.transaction() as connection:
            if not connection.execute(_BOOTSTRAP, {"now": str(self._now_us())}).rowcount:
                return None
            self._workspaces.create(connection, "default")
            text, _ = self._keys.create_in(connection, None, "admin", expires_s=None, note="created on first start")
            return text

    def check(self, *, sample: int = 0) -> dict[str, PenstockError]:
        """Of up to `sample` workspaces at random, those that the server cannot use, and why.

        Raises `StorageError` unless the database answers and, with a sample, its login may create roles and schemas;
        `NotFoundError` for a database without tables.
        """
        return self._workspaces.check(sample)

    def repair(self) -> dict[str, PenstockError]:
        """Create missing roles of workspaces, as after a restore; returns those that cannot be used even then."""
        return self._workspaces.repair()

    def close(self) -> None:
        """Write what is buffered, and close all connections."""
        self._flusher.close()
        self._workspaces.close()
        self._control.close()

    def authenticate(self, key_text: str) -> Principal:
        """Who holds a key, and their role now; raises `AccessDeniedError`. Answers are at most 3 s old."""
        return self._keys.authenticate(key_text)

    def create_workspace(self, name: str) -> None:
        """Create a workspace with a database of its own; raises `AlreadyExistsError`."""
        with self._control.transaction() as connection:
            self._workspaces.create(connection, name)

    def drop_workspace(self, name: str) -> None:
        """Remove a workspace without tables, its members and keys included; raises `ConflictError`, `NotFoundError`."""
        self._workspaces.drop(name)
        self._keys.forget_verified()

    def workspaces(self) -> list[WorkspaceInfo]:
        """All workspaces, sorted by name."""
        return self._workspaces.all()

    def workspace(self, name: str) -> Workspace:
        """A workspace; raises `NotFoundError`. What other processes did to it is seen within 3 s."""
        return Workspace(name, self._workspaces, self._audit, now_us=self._now_us, retention_s=self._retention_s)

    def members(self, workspace: str) -> list[MemberInfo]:
        """The members of a workspace, sorted by name; raises `NotFoundError`."""
        return self._members.all(workspace)

    def set_member(self, workspace: str, member: str, role: Role) -> MemberInfo:
        """Add a member, or change their role; other processes see it within 3 s."""
        info = self._members.set(workspace, member, role)
        self._keys.forget_verified()
        return info

    def remove_member(self, workspace: str, member: str) -> None:
        """Remove a member and revoke their keys; raises `NotFoundError`."""
        self._members.remove(workspace, member)
        self._keys.forget_verified()

    def create_key(
        self, workspace: str | None, member: str, *, expires_s: float | None = None, note: str = ""
    ) -> tuple[str, KeyInfo]:
        """A new key and its text, which is not stored; without a workspace, a key of the server's admin."""
        return self._keys.create(workspace, member, expires_s=expires_s, note=note)

    def keys(self, workspace: str | None) -> list[KeyInfo]:
        """The keys of a workspace, or of the server's admin, revoked ones included; newest last."""
        return self._keys.all(workspace)

    def revoke_key(self, workspace: str | None, key_id: str) -> KeyInfo:
        """Refuse a key from now on, in other processes within 3 s; raises `NotFoundError`."""
        return self._keys.revoke(workspace, key_id)

    def audit(self, event: AuditEvent, *, now: bool = False) -> None:
        """Log an event that belongs to no workspace."""
        self._audit.add(None, event, now=now)

    def audit_events(self, before: int | None = None, limit: int = 100) -> list[AuditEvent]:
        """The newest events that belong to no workspace; `before` is the id of the last event of the page before."""
        return self._audit.events(None, before, limit)

    def flush(self) -> None:
        """Write last uses of keys and buffered audit events; a thread does it every second."""
        self._keys.flush()
        self._audit.flush()
