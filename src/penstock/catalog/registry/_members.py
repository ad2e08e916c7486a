"""Members of workspaces, and their roles."""

from collections.abc import Callable
from typing import get_args

import sqlalchemy as sa

from penstock.catalog.registry import _schema
from penstock.catalog.registry._database import Database
from penstock.catalog.registry._records import MemberInfo, Role
from penstock.catalog.registry._workspaces import Workspaces
from penstock.errors import InvalidInputError, NotFoundError

_MAX_NAME = 254  # the longest e-mail address
_m = _schema.members
_k = _schema.keys
_COLUMNS = (_m.c.name, _m.c.role, _m.c.created_us)


class Members:
    """The members of every workspace.

    A workspace may be left without an admin: the server's admin can always appoint one.
    """

    def __init__(self, control: Database, workspaces: Workspaces, now_us: Callable[[], int]) -> None:
        self._control = control
        self._workspaces = workspaces
        self._now_us = now_us

    def all(self, workspace: str) -> list[MemberInfo]:
        id = self._workspaces.find(workspace).id
        rows = self._control.read(sa.select(*_COLUMNS).where(_m.c.workspace_id == id).order_by(_m.c.name))
        return [MemberInfo(*row) for row in rows]

    def set(self, workspace: str, member: str, role: Role) -> MemberInfo:
        """Add a member, or change the role of one."""
        check_member_name(member)
        if role not in get_args(Role):
            raise InvalidInputError(f"{role!r} is no role; choose one of {', '.join(get_args(Role))}")
        with self._control.transaction() as connection:
            id = self._workspaces.id_in(connection, workspace)  # locks the workspace, so that nobody adds the same one
            is_member = (_m.c.workspace_id == id, _m.c.name == member)
            row = connection.execute(sa.update(_m).where(*is_member).values(role=role).returning(*_COLUMNS)).first()
            if row is None:
                values = {"workspace_id": id, "name": member, "role": role, "created_us": self._now_us()}
                row = connection.execute(sa.insert(_m).values(values).returning(*_COLUMNS)).one()
            return MemberInfo(*row)

    def remove(self, workspace: str, member: str) -> None:
        """Remove a member and revoke their keys; they stay revoked if the member is added again."""
        check_member_name(member)
        with self._control.transaction() as connection:
            id = self._workspaces.id_in(connection, workspace)
            removed = connection.execute(sa.delete(_m).where(_m.c.workspace_id == id, _m.c.name == member))
            if not removed.rowcount:
                raise NotFoundError(no_member(workspace, member))
            own = (_k.c.workspace_id == id, _k.c.member == member, _k.c.revoked_us.is_(None))
            connection.execute(sa.update(_k).where(*own).values(revoked_us=self._now_us()))


def check_member_name(name: str) -> None:
    """Raise `InvalidInputError` for a name that cannot be shown on one line."""
    if not name or len(name) > _MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInputError(
            f"{name[:_MAX_NAME]!r} cannot name a member; write 1 to {_MAX_NAME} printable letters, such as an e-mail "
            "address"
        )


def no_member(workspace: str, member: str) -> str:
    return f"workspace {workspace!r} has no member {member!r}; add them first, or check the name"
