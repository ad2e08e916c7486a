"""The tables of both databases, as the migrations leave them."""

from typing import Any

import sqlalchemy as sa

control = sa.MetaData()
workspace = sa.MetaData()


def _column(name: str, type: Any = sa.Text, **options: Any) -> "sa.Column[Any]":
    return sa.Column(name, type, **{"nullable": False} | options)


def _audit(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        "audit",
        metadata,
        _column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        _column("time_us", sa.BigInteger),
        _column("request_id"),
        _column("member"),
        _column("key_id"),
        _column("operation"),
        _column("target"),
        _column("outcome", sa.Integer),
        _column("detail"),
    )


settings = sa.Table("settings", control, _column("name", primary_key=True), _column("value"))
workspaces = sa.Table(
    "workspaces",
    control,
    _column("id", primary_key=True),
    _column("name", unique=True),
    _column("revision"),
    _column("password", nullable=True),
    _column("created_us", sa.BigInteger),
)
members = sa.Table(
    "members",
    control,
    sa.Column("workspace_id", sa.Text, sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True),
    _column("name", primary_key=True),
    _column("role"),
    _column("created_us", sa.BigInteger),
)
keys = sa.Table(
    "keys",
    control,
    _column("id", primary_key=True),
    _column("digest", sa.LargeBinary),
    sa.Column("workspace_id", sa.Text, sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True),
    _column("member"),
    _column("note"),
    _column("created_us", sa.BigInteger),
    _column("expires_us", sa.BigInteger, nullable=True),
    _column("revoked_us", sa.BigInteger, nullable=True),
    _column("last_used_us", sa.BigInteger, nullable=True),
)
locations = sa.Table(
    "locations",
    control,
    _column("location", primary_key=True),
    sa.Column("workspace_id", sa.Text, sa.ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False, index=True),
)
control_audit = _audit(control)

tables = sa.Table(
    "tables",
    workspace,
    _column("id", primary_key=True),
    _column("name"),
    _column("location", unique=True),
    _column("owned", sa.Boolean),
    _column("created_us", sa.BigInteger),
    _column("created_by"),
    _column("properties"),
    _column("dropped_us", sa.BigInteger, nullable=True),
    _column("purge_us", sa.BigInteger, nullable=True, index=True),
    _column("claimed_us", sa.BigInteger, nullable=True),
)
workspace_audit = _audit(workspace)
