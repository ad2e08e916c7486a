"""What the registry returns: frozen values, none of which holds a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["reader", "writer", "admin"]


@dataclass(frozen=True)
class Principal:
    """Who makes a request, and with which rights."""

    key_id: str
    member: str
    workspace: str | None
    """None for the server's admin, who may act in every workspace."""
    role: Role

    @property
    def is_server_admin(self) -> bool:
        return self.workspace is None


@dataclass(frozen=True)
class WorkspaceInfo:
    """A workspace and when it was created."""

    name: str
    created_us: int


@dataclass(frozen=True)
class MemberInfo:
    """A member of a workspace."""

    name: str
    role: Role
    created_us: int


@dataclass(frozen=True)
class KeyInfo:
    """What may be shown of an API key."""

    id: str
    member: str
    workspace: str | None
    """None for a key of the server's admin."""
    note: str
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    last_used_us: int | None
    """Up to half a minute late."""


@dataclass(frozen=True)
class TableRow:
    """A table of a workspace."""

    id: str
    name: str
    location: str
    owned: bool
    """Whether the server created the location, and deletes its objects when the table is purged."""
    created_us: int
    dropped_us: int | None
    purge_us: int | None
    created_by: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditEvent:
    """One request to the server."""

    time_us: int
    request_id: str
    member: str
    key_id: str
    operation: str
    target: str
    outcome: int
    """The HTTP status."""
    detail: str = ""
    id: int | None = None
    """Given by the database: the cursor of `audit_events`."""
