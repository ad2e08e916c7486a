"""README: every block runs, in order, in an empty folder, against an S3 server."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from penstock.storage import open_store
from tests.servers import moto_bucket, s3_environment, s3_options

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
INSTALLATION = ("pip install", "make ")
"""Commands that `make test` itself has run to get here; only their names are checked."""


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = moto_bucket("your-bucket")
    bucket = open_store("s3://your-bucket/pets", options=s3_options(endpoint))
    rng = np.random.default_rng(0)
    for number in range(240):
        image = rng.integers(0, 255, (48 + number % 3, 64, 3), np.uint8)
        bucket.put(f"{('cat', 'dog')[number % 2]}/{number:03}.jpg", simplejpeg.encode_jpeg(image))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in s3_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), names)
        elif not block.startswith(INSTALLATION):
            done = subprocess.run(["sh", "-e", "-c", block], capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, done.stderr
    assert names["rest"] == 240 - 2 * 32
    assert len(names["ds"]["reviewed"]) == 240
    names.clear()  # the loader's threads reference the page's names
    assert "2 updated" in capsys.readouterr().out


def test_blocks_name_what_there_is() -> None:
    assert {language for language, _ in BLOCKS} <= {"python", "sh"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lines = [line for _, block in BLOCKS for line in block.splitlines() if line.startswith(INSTALLATION)]
    assert len(lines) == 3
    for line in lines:
        extra, target = re.search(r"\[(\w+)\]", line), re.match(r"make (\w+)", line)
        assert extra is None or extra[1] in extras
        assert target is None or target[1] in targets


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(TEXT.splitlines()) <= 150
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / link).exists(), link
