"""Bring databases to the schema of this version of Penstock, with alembic and without configuration files.

A released migration never changes, and only adds: servers of the version before run on while a new one migrates.
"""

import threading
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from penstock.errors import UnsupportedFormatError

CONTROL = "control_migrations"
WORKSPACE = "workspace_migrations"
_alembic_lock = threading.Lock()  # its `op` is one object per process


@cache
def head(tree: str) -> str:
    """The newest revision of a tree of migrations."""
    revision = _scripts(tree).get_current_head()
    assert revision is not None
    return revision


def upgrade(connection: sa.Connection, tree: str, *, database: str) -> None:
    """Run the migrations that a database lacks, in the caller's transaction; a newer database is refused."""
    scripts = _scripts(tree)
    newest = head(tree)

    def steps(revisions: tuple[str, ...], _context: MigrationContext) -> Any:
        return scripts._upgrade_revs(newest, revisions)  # type: ignore[arg-type]

    with _alembic_lock:
        context = MigrationContext.configure(connection, opts={"fn": steps, "transactional_ddl": True})
        for revision in context.get_current_heads():
            check_known(tree, revision, database=database)
        with Operations.context(context):
            context.run_migrations()


def check_known(tree: str, revision: str, *, database: str) -> None:
    """Raise `UnsupportedFormatError` for a revision that a newer Penstock made."""
    if revision not in {script.revision for script in _scripts(tree).walk_revisions()}:
        raise UnsupportedFormatError(
            f"{database} was migrated by a newer Penstock (revision {revision}; this one knows {head(tree)}); upgrade "
            "Penstock on this host, or restore the database from before that migration"
        )


@cache
def _scripts(tree: str) -> ScriptDirectory:
    folder = str(Path(__file__).with_name(tree))
    return ScriptDirectory(folder, version_locations=[folder])
