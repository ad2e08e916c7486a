"""Several ranks with several worker processes each, of which some are killed: every row is delivered once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import Column, Tensor
from tests.engine.watch import processes_of_session, soon

ROOT = Path(__file__).parents[2]
ROWS = 2000


class Rank:
    """A rank in a process of its own."""

    def __init__(self, uri: str, rank: int, ranks: int, workers: int, folder: Path) -> None:
        self.path = folder / f"rank-{rank}"
        self._command = [
            sys.executable, "-m", "tests.engine.reading_rank", uri, str(rank), str(ranks), str(workers), str(self.path)
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=ROOT, start_new_session=True)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def workers(self) -> list[int]:
        return sorted(processes_of_session(self.process.pid) - {self.process.pid})

    def lines(self) -> list[dict[str, object]]:
        whole = self.path.read_text().split("\n")[:-1] if self.path.exists() else []  # a kill may cut the last line
        return [json.loads(line) for line in whole]

    def repair(self) -> None:
        """Drop a line that a kill has cut, whose batch counts as not read."""
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines()))


def run(folder: Path, ranks: int, workers: int, kills: int) -> None:
    ds = penstock.create(folder / "t", {"x": Column(Tensor("uint8", (500,)), page_bytes=1000)})
    ds.append({"x": np.zeros((ROWS, 500), np.uint8)})
    ds.commit()
    row_ids = [int(n) for batch in ds.select(["_row_id"]).numpy(batch_size=500) for n in batch["_row_id"]]
    readers = [Rank(ds.uri, rank, ranks, workers, folder) for rank in range(ranks)]
    rng = np.random.default_rng(0)
    try:
        for kill in range(kills):
            victim = readers[kill % ranks]
            goes_on = len(victim.lines()) + 4
            assert soon(lambda: victim.has_ended or len(victim.lines()) >= goes_on), "it reads"  # noqa: B023
            if victim.has_ended:
                continue
            if kill % 3 == 2:
                victim.process.kill()
                victim.process.wait()
                assert soon(lambda: not victim.workers), "its workers end with it"  # noqa: B023
                victim.repair()
                victim.start()
            elif victim.workers:
                os.kill(int(rng.choice(victim.workers)), signal.SIGKILL)
        for reader in readers:
            assert reader.process.wait(240) == 0
    finally:
        for reader in readers:
            reader.process.kill()
            reader.process.wait()
    found = Counter(row for reader in readers for line in reader.lines() for row in line["rows"])  # type: ignore[attr-defined]
    assert found == Counter(row_ids)


def test_two_ranks_with_two_workers_each(tmp_path: Path) -> None:
    run(tmp_path, ranks=2, workers=2, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_ranks_with_four_workers_each(tmp_path: Path) -> None:
    run(tmp_path, ranks=4, workers=4, kills=12)
