"""What every source must stand: ten times the memory that the process may have, and being killed at any moment."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from tests.ingest.corpora import MAKERS, make
from tests.ingest.limited import LIMIT_BYTES

ROOT = Path(__file__).parents[2]
KILLS = 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_ten_times_the_memory_is_taken_in(kind: str, tmp_path: Path) -> None:
    rows = make(kind, tmp_path / "source", total_bytes=10 * LIMIT_BYTES, files=2)
    words = [sys.executable, "-m", "tests.ingest.limited", kind, str(tmp_path / "source"), str(tmp_path / "table")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == rows


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_killed_run_loses_nothing_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    rows = make(kind, tmp_path / "source", total_bytes=200 << 20, files=20)
    whole, place = tmp_path / "whole", tmp_path / "table"
    penstock.ingest(tmp_path / "source", whole, kind=kind)
    dice, kills = random.Random(time.time_ns()), 0
    words = [sys.executable, "-m", "penstock.cli", "create", str(place), f"from-{tmp_path / 'source'}", "--as", kind]
    while True:
        program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            told = program.communicate(timeout=dice.uniform(0.8, 2.5) if kills < KILLS else 200)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate()
            kills += 1
            continue
        assert program.returncode == 0, told
        break
    assert len(penstock.load(place)) == rows
    assert penstock.load(place).to_arrow().equals(penstock.load(whole).to_arrow())
