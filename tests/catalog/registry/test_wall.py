"""The wall in the database: SQL of one workspace reaches nothing of another, whatever it says."""

import base64
import hashlib
import hmac
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from penstock.catalog.registry import Registry
from penstock.errors import AccessDeniedError, NotFoundError, StorageError
from tests.servers import new_database, postgres_url


def ids(registry: Registry) -> dict[str, str]:
    return dict(registry._control.read(sa.text("SELECT name, id FROM workspaces")))


@pytest.fixture
def two(registry: Registry) -> Registry:
    registry.create_workspace("rival")
    registry.workspace("rival").declare("secret", "s3://bucket/rival")
    registry.workspace("team").declare("own", "s3://bucket/team")
    return registry


def run(registry: Registry, *statements: str) -> list[object]:
    """Run SQL on one connection of the workspace "team", and return the rows of the last statement."""
    database = registry._workspaces.open(registry._workspaces.find("team"))
    rows: list[object] = []
    with database._translated_errors(), database.engine.connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = list(result) if result.returns_rows else []
    return rows


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "statements",
    [
        ["SELECT * FROM {rival}.tables"],
        ["INSERT INTO {rival}.tables SELECT * FROM tables"],
        ["DELETE FROM {rival}.tables"],
        ["DROP SCHEMA {rival} CASCADE"],
        ["SET search_path = {rival}", "SELECT location FROM tables WHERE name = 'secret'"],
        ["SELECT * FROM penstock.keys"],
        ["SELECT * FROM penstock.workspaces"],
        ["SET search_path = penstock", "SELECT * FROM keys"],
        ["SET ROLE penstock_{rival_id}"],
        ["SET ROLE penstock"],
        ["SET SESSION AUTHORIZATION penstock"],
        ["SELECT set_config('role', 'penstock_{rival_id}', false)"],
        ["RESET ROLE", "SELECT * FROM penstock.keys"],
        ["SET ROLE NONE", "SELECT * FROM penstock.keys"],
        ["RESET SESSION AUTHORIZATION", "SELECT * FROM {rival}.tables"],
        ["DISCARD ALL", "SELECT * FROM {rival}.tables"],
        ["CREATE ROLE other"],
        ["ALTER ROLE penstock_{rival_id} PASSWORD 'x'"],
        ["GRANT penstock TO CURRENT_USER"],
        ["ALTER TABLE tables ADD COLUMN x text"],
        ["DROP TABLE tables"],
        ["CREATE TABLE other (x text)"],
        ["UPDATE audit SET detail = ''"],
        ["DELETE FROM audit"],
        ["UPDATE alembic_version SET version_num = 'x'"],
        ["SELECT pg_read_file('/etc/passwd')"],
        ["COPY tables TO PROGRAM 'cat'"],
    ],
)
def test_postgresql_refuses_to_leave_the_workspace(two: Registry, statements: list[str]) -> None:
    rival = ids(two)["rival"]
    with pytest.raises(
        (AccessDeniedError, NotFoundError, StorageError), match=r"42|denied|must|cannot|no such tables|permission"
    ):
        run(two, *(text.format(rival=f"ws_{rival}", rival_id=rival) for text in statements))
    assert two.workspace("rival").find("secret").location == "s3://bucket/rival"


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_workspaces_session_is_its_role_and_no_member_of_another(two: Registry) -> None:
    role = f"penstock_{ids(two)['team']}"
    assert run(two, "SELECT session_user, current_user, current_schema()") == [(role, role, f"ws_{ids(two)['team']}")]
    assert run(two, f"SELECT count(*) FROM pg_auth_members WHERE member = '{role}'::regrole") == [(0,)]
    assert run(two, "SELECT name FROM tables") == [("own",)]
    names = run(two, "SELECT nspname FROM pg_namespace UNION SELECT rolname FROM pg_roles")
    assert not [name for name in names if "rival" in str(name)], "system catalogs show random ids, no names"


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_the_role_has_the_password_that_the_registry_keeps(two: Registry, url: str) -> None:
    """The server of the tests trusts everybody, so the verifier is computed here."""
    [(id, password)] = two._control.read(sa.text("SELECT id, password FROM workspaces WHERE name = 'team'"))
    superuser = postgres_url().replace("penstock:water", "root") + "/postgres"
    with psycopg.connect(superuser) as connection:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        [verifier] = connection.execute(query, [f"penstock_{id}"]).fetchone() or [""]
    scheme, salt, keys = verifier.split("$")
    iterations, salt = salt.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(iterations))
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    assert (scheme, base64.b64decode(keys.split(":")[0])) == ("SCRAM-SHA-256", stored)
    assert password not in repr(two._workspaces.find("team"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_refuses_to_open_another_file(two: Registry, url: str) -> None:
    for name in ("registry.db", f"registry.ws_{ids(two)['rival']}.db"):
        assert Path(url, name).exists()
        with pytest.raises(StorageError, match="too many attached databases"):
            run(two, f"ATTACH '{Path(url, name)}' AS other")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_files_belong_to_the_server_alone(two: Registry, url: str) -> None:
    files = list(Path(url).iterdir())
    assert len([file for file in files if file.suffix == ".db"]) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(Path(url).stat().st_mode) == 0o700


def login(name: str, attributes: str) -> str:
    """The URL of a new database for another login."""
    url = new_database()
    parts = urlsplit(url)
    superuser = postgres_url().replace("penstock:water", "root") + parts.path
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN {attributes} PASSWORD 'water'")
        if "CREATEROLE" in attributes.split():
            connection.execute(f"GRANT CREATE ON DATABASE {parts.path[1:]} TO {name}")
    return url.replace("penstock:water", f"{name}:water")


def test_a_login_that_cannot_create_roles_is_told_what_to_do() -> None:
    registry = Registry(login("plain", "NOCREATEROLE"))
    try:
        with pytest.raises(AccessDeniedError, match='ALTER ROLE "plain" CREATEROLE') as caught:
            registry.migrate()
        assert "water" not in str(caught.value)
    finally:
        registry.close()


def test_a_login_that_cannot_create_schemas_is_told_what_to_do() -> None:
    registry = Registry(login("creator", "NOSUPERUSER CREATEROLE").replace("creator:", "creator:"))
    try:
        with psycopg.connect(
            postgres_url().replace("penstock:water", "root") + "/postgres", autocommit=True
        ) as connection:
            connection.execute(f"REVOKE CREATE ON DATABASE {registry._control.url.database} FROM creator")
        with pytest.raises(AccessDeniedError, match="GRANT CREATE ON DATABASE"):
            registry.migrate()
    finally:
        registry.close()


def test_createrole_and_create_are_all_that_a_login_needs() -> None:
    registry = Registry(login("builder", "NOSUPERUSER NOCREATEDB CREATEROLE"))
    try:
        registry.migrate()
        assert registry.bootstrap()
        registry.workspace("default").declare("table", "s3://bucket/1")
        registry.create_workspace("brief")
        registry.drop_workspace("brief")
    finally:
        registry.close()
