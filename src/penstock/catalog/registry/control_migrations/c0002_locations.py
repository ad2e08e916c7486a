"""The locations of registered tables, each of which one workspace has."""

import sqlalchemy as sa
from alembic import op

revision = "c0002"
down_revision = "c0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "locations",
        sa.Column("location", sa.Text, primary_key=True),
        sa.Column(
            "workspace_id", sa.Text, sa.ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False, index=True
        ),
    )
