"""What a server knows: workspaces, members, API keys, tables and the audit log, on PostgreSQL or SQLite.

Needs the packages of `penstock[server]`; nothing else of Penstock imports it when it starts.
"""

from penstock.catalog.registry._errors import DatabaseRefusedError
from penstock.catalog.registry._records import (
    AuditEvent,
    KeyInfo,
    MemberInfo,
    Principal,
    Role,
    TableRow,
    WorkspaceInfo,
)
from penstock.catalog.registry._registry import Registry
from penstock.catalog.registry._tables import Workspace

__all__ = [
    "AuditEvent",
    "DatabaseRefusedError",
    "KeyInfo",
    "MemberInfo",
    "Principal",
    "Registry",
    "Role",
    "TableRow",
    "Workspace",
    "WorkspaceInfo",
]
