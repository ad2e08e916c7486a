"""Tables of a workspace, dropped ones included, and its audit log."""

import sqlalchemy as sa
from alembic import op

revision = "w0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "tables",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("location", sa.Text, nullable=False, unique=True),
        sa.Column("owned", sa.Boolean, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("properties", sa.Text, nullable=False),
        sa.Column("dropped_us", sa.BigInteger),
        sa.Column("purge_us", sa.BigInteger),
        sa.Column("claimed_us", sa.BigInteger),
    )
    live = sa.text("dropped_us IS NULL")
    op.create_index("tables_live_name", "tables", ["name"], unique=True, sqlite_where=live, postgresql_where=live)
    op.create_index("tables_purge", "tables", ["purge_us"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("time_us", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("member", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("outcome", sa.Integer, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
