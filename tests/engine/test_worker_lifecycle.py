"""Worker processes come and go: killed ones are replaced, and nothing of them is left, however a program ends."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Workers
from penstock.errors import PenstockError
from tests.engine.watch import open_files, our_threads, processes_of_session, soon, threads_end, worker_processes

ROWS = 600
ROOT = Path(__file__).parents[2]
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=2000, spread=1, lanes=12), "batch_size": 10}
TWO = Workers(4, "process")
"""Two processes of two threads."""


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    schema = {"n": Column(Tensor("int64"), page_bytes=64), "x": Column(Tensor("uint8", (9000,)), page_bytes=20_000)}
    made = penstock.create(tmp_path_factory.mktemp("workers") / "t", schema)
    made.append({"n": range(ROWS), "x": np.repeat((np.arange(ROWS) % 251).astype(np.uint8)[:, None], 9000, axis=1)})
    made.commit()
    return made


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert threads_end(), our_threads()
    assert soon(lambda: not worker_processes()), worker_processes()


def slow(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.005)
    return batch


@pytest.mark.parametrize("options", [{}, {"batch_transform": slow}], ids=["gather", "finish"])
def test_every_row_comes_once_while_workers_are_killed(ds: Dataset, options: Any) -> None:
    with ds.numpy(num_workers=1, **MIXED) as here:
        expected = [batch["n"].tolist() for _ in range(2) for batch in here]
    with ds.numpy(num_workers=TWO, memory_budget=1 << 20, **MIXED, **options) as loader:
        found = []
        for _ in range(2):
            for step, batch in enumerate(loader):
                found.append(batch["n"].tolist())
                assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
                if step % 20 == 7:
                    os.kill(worker_processes()[step // 20 % 2], signal.SIGKILL)
        assert found == expected
        assert any("exit code -9" in note for note in loader.stats().notes)


class DiesWithBatches:
    """A transform whose worker process is killed when the batches are written and not sent yet, once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        _builder_main: Any = import_module("penstock.engine.workers._builder_main")
        pack = _builder_main.pack

        def pack_and_die(*values: Any, **options: Any) -> Any:
            found = pack(*values, **options)
            if 77 in batch["n"] and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            _builder_main.pack = pack
            return found

        _builder_main.pack = pack_and_die
        return {"x": batch["x"] + np.uint8(1), "n": batch["n"]}


def test_batches_of_a_worker_that_dies_are_made_again_of_the_same_rows(ds: Dataset, tmp_path: Path) -> None:
    made = DiesWithBatches(tmp_path / "died")
    with ds.numpy(num_workers=TWO, memory_budget=1 << 20, batch_transform=made, **MIXED) as loader:
        rows = 0
        for batch in loader:
            assert (batch["x"] == (batch["n"] % 251 + 1)[:, None]).all()
            rows += len(batch["n"])
    assert rows == ROWS
    assert (tmp_path / "died").exists()


def test_an_error_of_a_worker_has_its_traceback(ds: Dataset) -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if 77 in batch["n"]:
            raise ZeroDivisionError("here")
        return batch

    with ds.numpy(num_workers=TWO, batch_size=10, batch_transform=fails) as loader:
        batches = iter(loader)
        assert [batch["n"][0] for batch in islice(batches, 7)] == list(range(0, 70, 10))
        with pytest.raises(ZeroDivisionError, match="here") as caught:
            next(batches)
    assert "In the worker process:" in caught.value.__notes__[-1]
    assert "in fails" in caught.value.__notes__[-1]


def test_a_worker_that_cannot_start_says_why(ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vanishing.py").write_text("def same(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vanishing  # type: ignore[import-not-found]

    with ds.numpy(num_workers=TWO, batch_size=10, batch_transform=vanishing.same) as loader:
        (tmp_path / "vanishing.py").unlink()
        with pytest.raises(ModuleNotFoundError, match="vanishing"):
            next(iter(loader))
    del sys.modules["vanishing"]


def test_functions_of_a_module_that_starts_threads_run_in_processes_that_are_not_forked(
    ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, threading, time\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "def where(batch):\n"
        "    return {**batch, 'threads': threading.active_count(), 'pid': os.getpid()}\n"
    )
    (tmp_path / "threaded.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    import threaded  # type: ignore[import-not-found]

    with ds.numpy(num_workers=Workers(2, "process"), batch_transform=threaded.where, **MIXED) as loader:
        killed = 0
        rows: list[int] = []
        for batch in loader:
            assert batch["threads"] > 1
            rows += batch["n"].tolist()
            if not killed:
                killed = batch["pid"]
                os.kill(killed, signal.SIGKILL)
        assert sorted(rows) == list(range(ROWS))
        assert any("exit code -9" in note for note in loader.stats().notes)
    del sys.modules["threaded"]


def test_starting_and_stopping_leaves_nothing(ds: Dataset) -> None:
    cycles(ds, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_starts_and_stops_leave_nothing(ds: Dataset) -> None:
    cycles(ds, 200)


def test_processes_that_have_ended_are_not_killed_again(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers may belong to other processes then."""
    loader = ds.numpy(num_workers=TWO, **MIXED)
    next(iter(loader))
    loader.close()
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    loader.close()
    del loader
    gc.collect()
    assert not killed


def cycles(ds: Dataset, count: int) -> None:
    files: list[int] = []
    for cycle in range(count):
        loader = ds.numpy(num_workers=TWO, **MIXED)
        for _ in islice(loader, cycle % 4):
            pass
        if cycle % 2:
            loader.close()
        del loader
        gc.collect()
        files.append(open_files())
    assert soon(lambda: not worker_processes())
    assert files[-1] <= files[0] + 2


def test_held_batches_stay_as_they_are_and_their_memory_comes_back(ds: Dataset) -> None:
    with ds.numpy(num_workers=TWO, batch_size=5, memory_budget=2 << 20, shuffle=MIXED["shuffle"]) as loader:
        held = [batch for _ in range(9) for batch in loader]
        assert len(held) > 1000
        assert open_files() < 600
        assert all((batch["x"] == (batch["n"] % 251)[:, None]).all() for batch in held)
        counts = Counter(int(n) for batch in held for n in batch["n"])
        assert set(counts.values()) == {9}
        mapped = _shared_bytes()
        del held
        gc.collect()
        list(loader)
        assert _shared_bytes() < mapped / 4


def _shared_bytes() -> int:
    """Bytes of anonymous shared memory that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [line.split()[0].split("-") for line in lines if "memfd:penstock" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in bounds)


def test_without_descriptors_threads_are_used(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.workers._counts._descriptor_error", lambda: "not permitted")
    with ds.numpy(num_workers=TWO, **MIXED) as loader:
        assert sorted(int(n) for batch in loader for n in batch["n"]) == list(range(ROWS))
        assert loader.stats().processes == 0
        assert any("does not let processes share memory: not permitted" in note for note in loader.stats().notes)


def test_a_fork_of_the_program_reads_with_workers_of_its_own(ds: Dataset) -> None:
    with ds.numpy(num_workers=TWO, **MIXED) as loader:
        batches = iter(loader)
        first = [next(batches)["n"].tolist() for _ in range(3)]
        child = os.fork()
        if not child:
            with ds.numpy(num_workers=TWO, **MIXED) as again:
                same = [batch["n"].tolist() for batch in islice(again, 3)] == first
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sorted(n for batch in [*first, *(b["n"].tolist() for b in batches)] for n in batch) == list(range(ROWS))


PROGRAM = """
import os, sys, time, penstock
double = lambda batch: {**batch, "n": batch["n"] * 2}
ds = penstock.load(sys.argv[1])
loader = ds.numpy(num_workers=penstock.Workers(4, "process"), batch_size=10, batch_transform=double, shuffle=True)
for batch in loader:
    assert (batch["n"] % 2 == 0).all()
    break
else:
    raise SystemExit("nothing was read")
batches = iter(loader)
next(batches)
print("reading", flush=True)
if sys.argv[2] == "exit":
    os._exit(0)
if sys.argv[2] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["ends", "exit", "killed"])
def test_no_process_is_left_however_the_program_ends(ds: Dataset, tmp_path: Path, how: str) -> None:
    """A script without a main guard, whose functions are lambdas."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), ds.uri, "wait" if how == "killed" else how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "reading\n"
        if how == "killed":
            assert len(processes_of_session(program.pid)) > 2
            program.kill()
    assert program.returncode == (-9 if how == "killed" else 0)
    assert soon(lambda: not processes_of_session(program.pid))


def test_workers_import_no_framework(ds: Dataset) -> None:
    with ds.pytorch(num_workers=TWO, **MIXED) as loader:
        next(iter(loader))
        for pid in worker_processes():
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert not any(name in mapped for name in ("libtorch", "pandas", "jaxlib", "tensorflow"))


def test_memory_of_all_processes_is_within_budget(ds: Dataset) -> None:
    """The sum of proportional set sizes, without what this process had before."""
    budget = 64 << 20
    before = _pss(os.getpid())
    with ds.numpy(num_workers=TWO, batch_size=10, shuffle=MIXED["shuffle"], memory_budget=budget) as loader:
        most = 0
        for step, _ in enumerate(loader):
            if step % 10 == 0:
                most = max(most, sum(map(_pss, [os.getpid(), *worker_processes()])) - before)
        assert most < budget + (300 << 20) + 2 * (60 << 20)


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError(pid)


def test_processes_that_keep_dying_end_the_run(ds: Dataset) -> None:
    def dies(batch: dict[str, Any]) -> dict[str, Any]:
        os._exit(3)

    with (
        ds.numpy(num_workers=Workers(1, "process"), batch_size=10, batch_transform=dies) as loader,
        pytest.raises(PenstockError, match="ended 3 times while one batch was made, the last time exit code 3"),
    ):
        next(iter(loader))
