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
    taken_in, peak_bytes = map(int, done.stdout.split())
    assert taken_in == rows
    assert peak_bytes < LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_killed_run_loses_nothing_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    rows = make(kind, tmp_path / "source", total_bytes=200 << 20, files=20)
    whole = tmp_path / "whole"
    began = time.monotonic()
    assert _ended(kind, tmp_path / "source", whole, allowed_s=200)
    took_s = time.monotonic() - began
    dice, kills = random.Random(time.time_ns()), 0
    for attempt in range(10):
        place = tmp_path / f"table-{attempt}"
        while not _ended(kind, tmp_path / "source", place, dice.uniform(0.3, 0.9) * took_s if kills < KILLS else 200):
            kills += 1
        assert len(penstock.load(place)) == rows
        assert penstock.load(place).to_arrow().equals(penstock.load(whole).to_arrow())
        if kills >= KILLS:
            return
    raise AssertionError(f"only {kills} runs were killed")


def _ended(kind: str, source: Path, table: Path, allowed_s: float) -> bool:
    """Take a source in, and say whether that came to its end in time; if not, it was killed."""
    words = [sys.executable, "-m", "penstock.cli", "create", str(table), f"from-{source}", "--as", kind]
    program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told = program.communicate(timeout=allowed_s)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        return False
    assert program.returncode == 0, told
    return True
