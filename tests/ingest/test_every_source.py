"""Every source: ten times more data than memory, and kills at random times."""

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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_ingest_of_ten_times_the_memory(kind: str, tmp_path: Path) -> None:
    rows = make(kind, tmp_path / "source", total_bytes=10 * LIMIT_BYTES, files=2)
    command = [sys.executable, "-m", "tests.ingest.limited", kind, str(tmp_path / "source"), str(tmp_path / "table")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    ingested, peak_bytes = map(int, done.stdout.split())
    assert ingested == rows
    assert peak_bytes < LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_killed_run_resumes_without_loss_or_duplicates(kind: str, tmp_path: Path) -> None:
    rows = make(kind, tmp_path / "source", total_bytes=200 << 20, files=20)
    whole = tmp_path / "whole"
    start_s = time.monotonic()
    assert _finished(kind, tmp_path / "source", whole, allowed_s=200)
    took_s = time.monotonic() - start_s
    rng, kills = random.Random(time.time_ns()), 0
    for attempt in range(10):
        table = tmp_path / f"table-{attempt}"
        while not _finished(kind, tmp_path / "source", table, rng.uniform(0.3, 0.9) * took_s if kills < KILLS else 200):
            kills += 1
        assert len(penstock.load(table)) == rows
        assert penstock.load(table).to_arrow().equals(penstock.load(whole).to_arrow())
        if kills >= KILLS:
            return
    raise AssertionError(f"only {kills} runs were killed")


def _finished(kind: str, source: Path, table: Path, allowed_s: float) -> bool:
    """Ingest a source; returns whether it finished in time, else it was killed."""
    command = [sys.executable, "-m", "penstock.cli", "create", str(table), f"from-{source}", "--as", kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output = process.communicate(timeout=allowed_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, output
    return True
