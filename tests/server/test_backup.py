"""Backup, restore and upgrade of a server's database, with the commands of docs/teams.md and a real PostgreSQL."""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import psycopg
import pytest

import penstock
from penstock.cli import main
from tests.server.running import running
from tests.servers import new_database, postgres_programs, start_postgres

PAGE = Path(__file__).parents[2] / "docs" / "teams.md"
OLD_DUMP = Path(__file__).parents[1] / "data" / "registry" / "c0001-w0001.sql"
"""Of a server with a workspace `robots`, a writer of it, a table `arm`, and a dropped one `leg`."""
OLD_KEY = "pen_Kdt6cqmg8aXV_zqJyQEY6Z1hrCrel1WVNDLQBnqqTWLcoMCXM6CPztTD_1TQsyY"


@cache
def other_cluster() -> str:
    """A PostgreSQL server that has no role of a workspace, and asks every login for its password."""
    return start_postgres()


def run_documented(program: str, url: str, folder: Path) -> None:
    """Run the command of the page that begins with a program, on the database of a URL."""
    [line] = re.findall(rf"^{program} .*$", PAGE.read_text(), re.MULTILINE)
    path = f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PENSTOCK_DATABASE": url}
    done = subprocess.run(["sh", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def as_superuser(url: str, statement: str) -> None:
    with psycopg.connect(url.replace("penstock:water", "root:flood"), autocommit=True) as connection:
        connection.execute(statement)


def restored(folder: Path) -> tuple[str, str, str]:
    """A server's database restored from a backup into another cluster: its URL, an admin's key and a writer's."""
    before, after = new_database(), new_database(other_cluster())
    with running(folder, "--database", before, "--storage", str(folder / "tables")) as server:
        server.post("/v1/namespace/robots/create")
        key = server.new_key("robots", "ana", "writer")
        location = server.post("/v1/table/arm/declare", key=key)["location"]
        penstock.create(location, {"angle": "float32"}).append({"angle": np.zeros(3, np.float32)})
        admin = server.admin_key
        server.stop()
    run_documented("pg_dump", before, folder)
    run_documented("pg_restore", after, folder)
    return after, admin, key


def check(database: str, capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    """What `penstock serve check` finds."""
    code = main(["serve", "check", "--json", "--database", database])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["ok"] else 1)
    return {each["name"]: each["ok"] for each in found["checks"]}


def test_a_backup_restored_into_another_cluster_serves_every_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    database, admin, key = restored(tmp_path)
    assert check(database, capsys) == {"database": True, "workspaces": False, "storage": True, "credentials": True}
    with running(tmp_path, "--database", database, "--storage", str(tmp_path / "tables")) as server:
        server.admin_key = admin
        described = server.post("/v1/table/arm/describe", {"load_detailed_metadata": True}, key=key)
        assert described["namespace"] == ["robots"]
        server.post("/v1/table/leg/declare", key=key)
        server.post("/v1/table/other/declare")
        assert server.get("/v1/namespace/robots/table/list", key=key)["tables"] == ["arm", "leg"]
        events = server.get("/v1/namespace/robots/audit/list")["events"]
        assert {"arm", "leg"} <= {event["target"].partition("$")[2] for event in events}
        assert server.request("GET", "/health?deep=1").status == 200
        server.stop()
        # Roles of which a copy has no password, as managed services make it.
        for role in roles(database):
            as_superuser(database, f"ALTER ROLE {role} PASSWORD NULL")
        server.start()
        assert server.get("/v1/namespace/robots/table/list", key=key)["tables"] == ["arm", "leg"]
        assert check(database, capsys) == dict.fromkeys(("database", "workspaces", "storage", "credentials"), True)


def roles(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [role for (role,) in connection.execute("SELECT 'penstock_' || id FROM penstock.workspaces")]


def old_database() -> str:
    database = new_database(other_cluster())
    with psycopg.connect(database) as connection:
        connection.execute(OLD_DUMP.read_bytes())
    return database


def test_a_server_upgrades_the_restored_database_of_an_older_version(tmp_path: Path) -> None:
    database = old_database()
    with running(tmp_path, "--database", database, "--storage", str(tmp_path / "tables")) as server:
        assert server.admin_key == "", "it has one already"
        assert server.get("/v1/namespace/robots/table/list", key=OLD_KEY)["tables"] == ["arm"]
        server.post("/v1/table/leg/undrop", key=OLD_KEY)
        server.post("/v1/table/hand/declare", key=OLD_KEY)
        assert server.get("/v1/namespace/robots/table/list", key=OLD_KEY)["tables"] == ["arm", "hand", "leg"]
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT version_num FROM penstock.alembic_version").fetchall() != [("c0001",)]


def test_a_workspace_that_was_not_restored_is_no_empty_one(tmp_path: Path) -> None:
    database = old_database()
    with psycopg.connect(database) as connection:
        [[id]] = connection.execute("SELECT id FROM penstock.workspaces WHERE name = 'robots'").fetchall()
        connection.execute(f"DROP SCHEMA ws_{id} CASCADE")
    with running(tmp_path, "--database", database, "--new-admin-key") as server:
        assert server.get("/v1/namespace/default/table/list")["tables"] == []
        assert server.request("GET", "/v1/namespace/robots/table/list", key=OLD_KEY).status != 200
        assert "workspace cannot be used" in {line["event"] for line in server.log_lines()}
        assert server.request("GET", "/health").status == 200
        assert server.request("GET", "/health?deep=1").status == 503
