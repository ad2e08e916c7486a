"""Worker processes: the same batches as from threads, also if processes die."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Boxes, Bytes, Column, Dataset, Shuffle, Tensor, Text, Workers
from penstock.engine import RowKeys
from penstock.errors import InvalidInputError, PenstockError, SampleError
from tests.adapters import transforms
from tests.adapters.transforms import BrokenError, Carrier, Pair
from tests.engine.watch import open_files, our_threads, soon, threads_end, worker_processes

ROWS = 60
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=256, lanes=2)}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = penstock.create(
        tmp_path_factory.mktemp("processes") / "t",
        {"n": Column(Tensor("int64"), page_bytes=64), "t": Text(), "b": Boxes()},
    )
    made.append([{"n": k, "t": f"row {k}", "b": [[k] * 4] * (k % 3)} for k in range(ROWS)])
    made.commit()
    return made


@pytest.fixture(autouse=True)
def _no_threads_or_processes_left() -> Iterator[None]:
    yield
    assert threads_end(), our_threads()
    assert soon(lambda: not worker_processes()), worker_processes()


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_processes_build_the_same_batches_as_threads(ds: Dataset, num_workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, **MIXED}
    view, workers = ds.select(["n"]), Workers(num_workers, "process")
    remote = view.pytorch(num_workers=workers, transform=transforms.drawn_in_every_way, **options)
    here = view.pytorch(num_workers=Workers(2, "thread"), transform=transforms.noisy, **options)
    drawn: dict[int, tuple[Any, Any]] = {}
    pids: set[int] = set()
    with remote, here:
        for epoch in range(2):
            for one, other in zip(remote, here, strict=True):
                assert torch.equal(one["n"], other["n"])
                assert torch.equal(one["noise"], other["noise"])
                pids |= set(one["pid"].tolist())
                if not epoch:
                    drawn.update(zip(one["n"].tolist(), zip(one["numpy"], one["torch"], strict=True), strict=True))
        assert os.getpid() not in pids
        assert 1 <= len(pids) <= num_workers
    for n, found in drawn.items():
        seed = int(RowKeys(0, 0, np.array([n])).generator(0).integers(1 << 32))
        expected = np.random.RandomState(seed).random(), torch.rand((), generator=torch.Generator().manual_seed(seed))
        assert found == expected, "global generators are seeded by the row"


def test_batches_of_all_types_are_transported(ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 8, "batch_transform": transforms.in_types_of_all_kinds}
    with ds.pytorch(num_workers=Workers(1, "process"), **options) as loader:
        for batch, other in zip(loader, ds.pytorch(**options), strict=True):
            n = batch["pair"].n
            assert torch.equal(n, other["pair"].n)
            assert isinstance(batch["pair"], Pair)
            assert (batch["pair"].name, list(batch["ordered"])) == ("pair", ["b", "a"])
            assert torch.equal(batch["ordered"]["b"], n.to(torch.bfloat16))
            truth, (waves, text, nothing) = batch["ordered"]["a"]
            assert torch.equal(truth, n.bool())
            assert torch.equal(waves, n.to(torch.complex64))
            assert (text, nothing, batch["shape"], len(batch["empty"])) == ("text", None, n.shape, 0)
            assert batch["one"] == n[0]
            assert isinstance(batch["carrier"], Carrier)
            assert torch.equal(batch["carrier"].n, n)
            assert batch["t"] == other["t"]
            assert all(map(torch.equal, batch["b"].unbind(), other["b"].unbind()))
            n += 1  # a batch is the user's to write to


def test_arrays_of_objects_are_transported(ds: Dataset) -> None:
    def named(sample: Any) -> Any:
        return {"o": np.array([f"row {sample['n']}", None], object)}

    with ds.numpy(batch_size=8, num_workers=Workers(1, "process"), transform=named) as loader:
        batches = list(loader)
    assert batches[0]["o"].shape == (8, 2)
    assert [row for batch in batches for row in batch["o"].tolist()] == [[f"row {n}", None] for n in range(ROWS)]


def test_functions_that_cannot_be_sent_are_rejected_or_run_in_threads(ds: Dataset, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(sample: Any) -> Any:
        with lock:
            return sample

    sentence = r'Workers\(…, "process"\) needs transforms and decoders that can be sent.*lock'
    with pytest.raises(InvalidInputError, match=sentence):
        ds.pytorch(batch_size=8, num_workers=Workers(2, "process"), transform=locked)
    media = penstock.create(tmp_path / "t", {"p": Bytes()})
    with pytest.raises(InvalidInputError, match=sentence):
        media.pytorch(batch_size=8, num_workers=Workers(2, "process"), decode={"p": locked})
    with ds.pytorch(batch_size=8, num_workers=4, transform=locked) as loader:
        assert sorted(numbers(loader)) == list(range(ROWS))
        assert (loader.stats().processes, loader.stats().threads) == (0, 4)
        assert any("threads are used" in note for note in loader.stats().notes)


def test_lambdas_closures_and_classes_of_scripts_travel(ds: Dataset) -> None:
    class Local:
        def __init__(self, n: Any) -> None:
            self.n = n

    offset = 1000
    with ds.select(["n"]).pytorch(
        batch_size=8, num_workers=4, collate_fn=lambda samples: [Local(s["n"] + offset) for s in samples]
    ) as loader:
        found = [sample for batch in loader for sample in batch]
        assert loader.stats().processes == 4
    assert all(type(sample) is Local for sample in found)
    assert [int(sample.n) for sample in found] == [1000 + k for k in range(ROWS)]


def test_errors_keep_their_type_and_position_and_the_process_survives(ds: Dataset) -> None:
    loader = ds.select(["n"]).pytorch(
        batch_size=10, num_workers=Workers(1, "process"),
        transform=transforms.fails_at_13_and_23, batch_transform=transforms.fails_at_33_and_43,
    )  # fmt: skip

    def failure(consumed: int, kind: type[Exception]) -> Exception:
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "consumed": consumed})
        with pytest.raises(kind) as caught:
            list(loader)
        assert loader.state_dict()["consumed"] == max(consumed, 10)
        return caught.value

    with loader:
        broken = failure(0, BrokenError)
        assert str(broken) == "thirteen"
        assert "in row 13 of the table (row id 13)" in broken.__notes__
        assert any("transforms.py" in note for note in broken.__notes__), "where it happened in the process"
        assert str(failure(20, SampleError)) == "FragileError: one"
        assert str(failure(30, FileNotFoundError)) == "the file that this transform needs"
        assert "what transforms and decoders return is sent from one process to another" in str(
            failure(40, InvalidInputError)
        )
        loader.load_state_dict({**loader.state_dict(), "consumed": 50})
        assert numbers(loader) == list(range(50, 60))
        assert loader.stats().notes == (), "no process has died of it"


def test_replacements_are_the_same_as_in_threads(ds: Dataset) -> None:
    options: dict[str, Any] = {"transform": transforms.rewritten, "bad_samples": "replace", **MIXED}
    view = ds.select(["n"])
    with view.pytorch(batch_size=8, num_workers=Workers(1, "process"), **options) as loader:
        remote = [(batch["n"].tolist(), batch["_pad"].tolist()) for batch in loader]
    assert remote == [(batch["n"].tolist(), batch["_pad"].tolist()) for batch in view.pytorch(batch_size=8, **options)]


def test_a_killed_process_is_restarted_and_no_row_is_lost(ds: Dataset) -> None:
    with ds.pytorch(batch_size=4, num_workers=Workers(1, "process"), transform=transforms.slow) as loader:
        seen: list[int] = []
        for step, batch in enumerate(loader):
            seen += batch["n"].tolist()
            if step == 1:
                pid = worker_processes()[-1]
                os.kill(pid, signal.SIGKILL)
        assert seen == list(range(ROWS))
        assert any("exit code -9" in note for note in loader.stats().notes)


def test_a_process_that_keeps_dying_raises_with_its_exit_code(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=4, num_workers=Workers(1, "process"), transform=transforms.dies)
    with pytest.raises(PenstockError, match="ended 3 times while one batch was made, the last time exit code 3"):
        list(loader)


def test_closing_neither_waits_for_a_transform_nor_restarts_it(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=1, num_workers=Workers(1, "process"), transform=transforms.very_slow)
    reader = start_reading(iter(loader))
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 60
    reader.join(60)
    assert not reader.is_alive()
    assert soon(lambda: not worker_processes())
    time.sleep(0.5)
    assert not worker_processes()
    assert loader.stats().notes == ()


def start_reading(batches: Iterator[Any]) -> threading.Thread:
    """Read in a thread, and wait until the process is busy."""

    def read() -> None:
        with pytest.raises(InvalidInputError, match="closed while it was read"):
            next(batches)

    reader = threading.Thread(target=read)
    reader.start()
    assert soon(lambda: len(worker_processes()) >= 3)  # the reader, the template and a builder
    time.sleep(0.5)
    return reader


def test_an_early_exit_keeps_the_process_for_the_next_epoch(tmp_path: Path) -> None:
    made = penstock.create(tmp_path / "t", {"n": int, "x": Tensor("float32", (300_000,))})
    made.append({"n": range(12), "x": np.repeat(np.arange(12, dtype=np.float32), 300_000).reshape(12, -1)})
    made.commit()
    loader = made.pytorch(batch_size=5, num_workers=Workers(1, "process"), transform=transforms.says_where)
    pids: list[int] = []
    files = []
    for steps in (1, 2, 3, 3, 3, 3):  # the last of three is shorter
        for batch in islice(loader, steps):
            assert torch.equal(batch["x"][:, -1], batch["n"].float())
            pids += batch["pid"].tolist()
        files.append(open_files())
    assert len(set(pids)) == 1
    assert files[-1] <= files[2] + 2
    loader.close()
    assert soon(lambda: not worker_processes())
    assert sorted(numbers(loader)) == list(range(12)), "a closed loader can be iterated again"
    del loader
    assert soon(lambda: not worker_processes()), "and one that is dropped ends its process"
