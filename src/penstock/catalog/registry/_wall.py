"""The wall between workspaces: on PostgreSQL a schema and a login role each, on SQLite a file each.

A workspace's connections log in as its role, which is a member of no other: SQL through them, whatever it says, reads
and writes the tables of that workspace only, and `SET ROLE` finds no other role to become. It does see the names in the
system catalogs: schemas and roles have random ids for names. The server's login owns all tables, so roles cannot
change schemas nor rewrite the audit log; it needs CREATEROLE and, on the database, CREATE, and joins no role.
"""

import secrets
from pathlib import Path

import sqlalchemy as sa

from penstock.catalog.registry import _migrations
from penstock.catalog.registry._database import (
    CONTROL_SCHEMA,
    Database,
    create_sqlite_file,
    role_name,
    schema_name,
    workspace_url,
)
from penstock.errors import AccessDeniedError, NotFoundError

_RIGHTS = {"tables": "SELECT, INSERT, UPDATE, DELETE", "audit": "SELECT, INSERT"}
_RIGHTS_OF_LOGIN = sa.text(
    "SELECT current_user, rolcreaterole OR rolsuper, has_database_privilege(current_database(), 'CREATE') "
    "FROM pg_roles WHERE rolname = current_user"
)


def check_control(control: Database) -> None:
    """Check that the database is there, and that its login may build walls."""
    if not control.is_postgresql:
        if not Path(control.url.database or "").exists():
            raise NotFoundError(f"{control.name} does not exist; the first start of a server creates it")
        return
    [(user, may_create_roles, may_create_schemas)] = control.read(_RIGHTS_OF_LOGIN)
    if not may_create_roles:
        raise AccessDeniedError(
            f"{control.name}: {user} may not create roles, and each workspace has one; let a superuser run "
            f'ALTER ROLE "{user}" CREATEROLE'
        )
    if not may_create_schemas:
        raise AccessDeniedError(
            f"{control.name}: {user} may not create schemas, and each workspace has one; let the database's owner run "
            f'GRANT CREATE ON DATABASE "{control.url.database}" TO "{user}"'
        )


def new_password(control: Database) -> str | None:
    """A password of a workspace's role; whoever can read it in the control schema can set another one anyway."""
    return secrets.token_urlsafe(32) if control.is_postgresql else None


def create(connection: sa.Connection, control: Database, id: str, password: str | None) -> None:
    """Create the database of a workspace, as a part of the transaction on the control database."""
    if password is not None:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema_name(id)}")
    migrate(connection, control, id, password)


def migrate(connection: sa.Connection, control: Database, id: str, password: str | None) -> None:
    """Bring the database of a workspace to the newest revision, and its role to the password and rights on record."""
    if password is not None:
        role, schema = role_name(id), schema_name(id)
        _set_password(connection, role, password)
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.exec_driver_sql(f"SET LOCAL search_path = {schema}")
        _migrations.upgrade(connection, _migrations.WORKSPACE, database=control.name)
        for table, rights in _RIGHTS.items():
            connection.exec_driver_sql(f"GRANT {rights} ON {table} TO {role}")
        connection.exec_driver_sql(f"SET LOCAL search_path = {CONTROL_SCHEMA}")
        return
    url = workspace_url(control.url, id, None)
    create_sqlite_file(url)
    database = Database(url)
    try:
        with database.transaction() as own:
            _migrations.upgrade(own, _migrations.WORKSPACE, database=database.name)
    finally:
        database.close()


def _set_password(connection: sa.Connection, role: str, password: str) -> None:
    """Create a role, or set the password of one: those of a cluster are in no dump of a database."""
    driver = connection.connection.driver_connection
    assert driver is not None
    # The server's log of statements gets a verifier instead of the password.
    verifier = driver.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    exists = connection.execute(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first()
    connection.exec_driver_sql(f"{'ALTER' if exists else 'CREATE'} ROLE {role} LOGIN PASSWORD '{verifier}'")


def check(database: Database, id: str) -> None:
    """Raise `StorageError` unless the login of a workspace may read its tables, `NotFoundError` if it has none."""
    # With the schema, because PostgreSQL leaves one without rights out of the search path: then no table is found.
    schema = f"{schema_name(id)}." if database.is_postgresql else ""
    for table in _RIGHTS:
        database.read(sa.text(f"SELECT 1 FROM {schema}{table} LIMIT 0"))


def drop_if_empty(connection: sa.Connection, control: Database, database: Database, id: str) -> int:
    """Remove the database of a workspace unless it has tables; returns their number, dropped ones included."""
    if control.is_postgresql:
        tables = f"{schema_name(id)}.tables"
        connection.exec_driver_sql(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        count = int(connection.exec_driver_sql(f"SELECT count(*) FROM {tables}").scalar_one())
        if not count:
            connection.exec_driver_sql(f"DROP SCHEMA {schema_name(id)} CASCADE")
            connection.exec_driver_sql(f"DROP ROLE {role_name(id)}")
        return count
    with database.transaction() as own:
        # A process that died before it committed the control database has dropped them already.
        names = set(own.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())
        count = int(own.exec_driver_sql("SELECT count(*) FROM tables").scalar_one()) if "tables" in names else 0
        if not count:  # a process that still has the file open must not write to it
            for table in names & _RIGHTS.keys():
                own.exec_driver_sql(f"DROP TABLE {table}")
    return count


def remove_files(database: Database) -> None:
    """Remove the files of a workspace on SQLite, after the transaction that dropped it."""
    if not database.is_postgresql:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{database.url.database}{suffix}").unlink(missing_ok=True)
