"""Samples in workers of torch's own DataLoader: a batch that arrives is the batch that was read, for any collate_fn."""

import copy
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, default_collate

import penstock
from penstock import Dataset, Image, Tensor
from penstock.engine import map_leaves
from tests.servers import new_location

ROWS, WIDTH, BATCH = 160, 2048, 16  # a batch has 128 KiB

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module", params=["folder", "s3"])
def ds(request: pytest.FixtureRequest) -> Dataset:
    """Rows read directly from local files, and rows gathered from fetched pages."""
    return table(request.param)


@pytest.fixture(scope="module")
def local() -> Dataset:
    return table("folder")


def table(kind: str) -> Dataset:
    place = new_location(kind)
    ds = penstock.create(
        place.uri, {"n": Tensor("int64"), "x": Tensor("float32", (WIDTH,))}, storage_options=place.options
    )
    n = np.arange(ROWS)
    ds.append({"n": n, "x": np.repeat(n, WIDTH).reshape(ROWS, WIDTH).astype(np.float32)})
    ds.commit()
    return ds


def check(batch: dict[str, Any]) -> list[int]:
    assert type(batch["x"]) is type(batch["n"]) is torch.Tensor
    assert batch["n"].dtype == torch.int64
    assert torch.equal(batch["x"], batch["n"].float()[:, None].expand(-1, WIDTH))
    return batch["n"].tolist()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_batches_that_are_held_stay_unchanged(ds: Dataset, method: str) -> None:
    """Also after the worker has ended, and if this process has used the dataset before."""
    rows = ds.pytorch()
    held_here = rows.__getitems__(list(range(BATCH)))
    order = [np.random.default_rng(epoch).permutation(ROWS).tolist() for epoch in range(15)]
    wanted = [numbers[start : start + BATCH] for numbers in order for start in range(0, ROWS, BATCH)]
    loader = DataLoader(rows, batch_sampler=wanted, num_workers=1, multiprocessing_context=method, timeout=240)
    held = list(loader)
    assert [check(batch) for batch in held] == wanted
    held[0]["x"] += 1
    assert torch.equal(held[0]["x"][:, 0], torch.tensor(wanted[0]).float() + 1)
    assert [check(batch) for batch in held[1:]] == wanted[1:]
    assert [float(row["x"][-1]) for row in held_here] == list(range(BATCH))


class CachedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """Caches samples in its process, as users do with slow sources."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.cache: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        missing = [index for index in indices if index not in self.cache]
        self.cache |= dict(zip(missing, self.rows.__getitems__(missing), strict=True))
        return [self.cache[index] for index in indices]


def test_samples_cached_in_persistent_workers_stay_unchanged(ds: Dataset) -> None:
    loader = DataLoader(
        CachedRows(ds.pytorch()), BATCH, shuffle=True, num_workers=2, persistent_workers=True, timeout=240
    )
    for _ in range(3):
        assert sorted(number for batch in loader for number in check(batch)) == list(range(ROWS))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_held_across_a_fork_stays_unchanged_in_the_child(ds: Dataset, num_workers: int) -> None:
    """The parent drops the batch and its samples, and reads others, while the child still uses them."""
    order = np.arange(ROWS).reshape(-1, BATCH).tolist()
    rows = ds.pytorch()
    batches = iter(DataLoader(rows, batch_sampler=order * 5, num_workers=num_workers, timeout=240 * num_workers))
    held: list[Any] = [next(batches), rows.__getitems__(order[0])]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(writing)
            os.read(reading, 1)
            same = check(held[0]) == order[0] and check(default_collate(held[1])) == order[0]
            status = 0 if same else 2
        finally:
            os._exit(status)
    held.clear()
    assert [check(batch) for batch in batches] == (order * 5)[1:]
    for indices in order:
        assert check(default_collate(rows.__getitems__(indices))) == indices
    os.close(reading)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


def doubled(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    batch["x"] = batch["x"] * 2
    return batch  # type: ignore[no-any-return]


def written_to(samples: list[dict[str, Any]]) -> dict[str, Any]:
    for sample in samples:
        sample["x"] += 1
    batch = default_collate(samples)
    batch["x"][:, 0] = -1
    return batch  # type: ignore[no-any-return]


def backwards(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return default_collate(samples[::-1])  # type: ignore[no-any-return]


def half(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return default_collate(samples[: BATCH // 2])  # type: ignore[no-any-return]


def replaced(samples: list[dict[str, Any]]) -> dict[str, Any]:
    samples[3]["x"] = torch.zeros(WIDTH)
    return default_collate(samples)  # type: ignore[no-any-return]


def reshaped(samples: list[dict[str, Any]]) -> dict[str, Any]:
    for sample in samples:
        sample["x"].unsqueeze_(0)
    return default_collate(samples)  # type: ignore[no-any-return]


def transposed(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    batch["x"].t_()
    return batch  # type: ignore[no-any-return]


def transposed_samples(samples: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [sample["x"].unsqueeze_(0).t_() for sample in samples]


def with_gradients(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    batch["x"].requires_grad_()
    return batch  # type: ignore[no-any-return]


def samples_with_gradients(samples: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [sample["x"].requires_grad_() for sample in samples]


def copied(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return default_collate(copy.deepcopy(pickle.loads(pickle.dumps(samples))))  # type: ignore[no-any-return]


def untouched(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples


def twice(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    return {"one": batch, "other": {"x": batch["x"]}}


COLLATES = [
    doubled, written_to, backwards, half, replaced, reshaped, transposed, transposed_samples, with_gradients,
    samples_with_gradients, copied, untouched, twice,
]  # fmt: skip


@pytest.mark.parametrize("collate", COLLATES, ids=lambda function: function.__name__)
def test_a_collate_fn_gives_the_same_in_a_worker_as_in_this_process(ds: Dataset, collate: Callable[..., Any]) -> None:
    order = np.random.default_rng(3).permutation(ROWS).reshape(-1, BATCH).tolist()
    here = list(DataLoader(ds.pytorch(), batch_sampler=order, collate_fn=collate))
    there = list(DataLoader(ds.pytorch(), batch_sampler=order, collate_fn=collate, num_workers=2, timeout=240))
    assert len(here) == len(there)
    for expected, found in zip(here, there, strict=True):
        for one, other in zip(leaves(expected), leaves(found), strict=True):
            assert type(one) is type(other) is torch.Tensor
            assert torch.equal(one, other)
            assert one.requires_grad == other.requires_grad


def resized(samples: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [sample["x"].resize_(2, WIDTH // 4) for sample in samples]


WORKERS: dict[str, Any] = {"here": 0, "threads": 2, "processes": penstock.Workers(1, "process")}


def by_turns(samples: list[dict[str, Any]]) -> Any:
    """Another collate_fn for each batch."""
    functions = [transposed_samples, resized, with_gradients, samples_with_gradients, written_to, untouched]
    return functions[int(samples[0]["n"]) % len(functions)](samples)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_collate_fn_gives_the_same_in_every_kind_of_worker(local: Dataset, workers: str) -> None:
    one, other = (
        local.pytorch(batch_size=BATCH, shuffle=True, collate_fn=by_turns, num_workers=WORKERS[name])
        for name in ("here", workers)
    )
    with one, other:
        for expected, found in zip(one, other, strict=True):
            for here, there in zip(leaves(expected), leaves(found), strict=True):
                assert type(here) is type(there) is torch.Tensor
                assert torch.equal(here, there)
                assert here.requires_grad == there.requires_grad


class CachingTransform:
    """Caches the samples that it gets, in its process, and returns them from then on."""

    def __init__(self) -> None:
        self.cache: dict[int, dict[str, Any]] = {}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return self.cache.setdefault(int(sample["n"]), sample)


@pytest.mark.parametrize("workers", WORKERS)
def test_samples_cached_by_a_transform_stay_unchanged(local: Dataset, workers: str) -> None:
    with local.pytorch(
        batch_size=BATCH, shuffle=True, transform=CachingTransform(), num_workers=WORKERS[workers]
    ) as loader:
        for _ in range(3):
            assert sorted(number for batch in loader for number in check(batch)) == list(range(ROWS))


def identity(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_of_a_loader_held_across_a_fork_stays_unchanged_in_the_child(local: Dataset, workers: str) -> None:
    """The parent drops its batches, and reads others, while children still use them."""
    with local.pytorch(
        batch_size=BATCH, shuffle=True, batch_transform=identity, num_workers=WORKERS[workers]
    ) as loader:
        children = []
        reading, writing = os.pipe()
        for _ in range(3):
            held = []
            for batch in loader:
                held.append((batch, batch["n"].tolist()))
                if len(held) == 3:
                    break
            if (child := os.fork()) == 0:
                status = 1
                try:
                    os.close(writing)
                    os.read(reading, 1)
                    status = 0 if all(check(batch) == numbers for batch, numbers in held) else 2
                finally:
                    os._exit(status)
            children.append(child)
            held.clear()
            del batch
        for _ in range(3):
            for batch in loader:
                check(batch)
        os.close(writing)
        os.close(reading)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]


def leaves(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_leaves(found.append, batch)
    return found


def test_rows_sampled_with_replacement(ds: Dataset) -> None:
    rows = ds.pytorch()
    torch.manual_seed(1)
    loader = DataLoader(
        rows, BATCH, sampler=RandomSampler(rows, replacement=True, num_samples=5 * ROWS), num_workers=2, timeout=240
    )
    assert sum(len(check(batch)) for batch in loader) == 5 * ROWS


def test_images_are_decoded_in_the_worker() -> None:
    table = penstock.create("memory://", {"p": Image(shape=(64, 64, 3)), "n": int})
    table.append({"p": [np.full((64, 64, 3), 2 * k, np.uint8) for k in range(40)], "n": list(range(40))})
    table.commit()
    loader = DataLoader(table.pytorch(), 10, shuffle=True, num_workers=1, timeout=240)
    for batch in loader:
        assert torch.equal(batch["p"][:, 5, 5, 0].long(), 2 * batch["n"])


READ_AFTER_A_KILL = 17


def read_after_a_kill(ds: Dataset) -> None:
    batches = iter(DataLoader(ds.pytorch(), 4, num_workers=1, timeout=240))
    check(next(batches))

    def kill_and_read() -> None:  # torch's SIGCHLD handler may raise at once
        os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        deque(batches, maxlen=0)

    # The last ones: the batch had arrived, but the worker ends before, or while, it hands over its memory.
    errors = r"exited unexpectedly|killed by signal|Connection re(set|fused)|No such file|Broken pipe|^$"
    try:
        with pytest.raises((RuntimeError, OSError, EOFError), match=errors):
            kill_and_read()
    except RuntimeError as late:  # that handler may also raise while the first error is looked at
        if "killed by signal" not in str(late):
            raise
    os._exit(READ_AFTER_A_KILL)


def test_a_killed_worker_raises_an_error(ds: Dataset) -> None:
    """In a process of its own: torch's SIGCHLD handler raises wherever the main thread is, the test runner included."""
    program = multiprocessing.get_context("spawn").Process(target=read_after_a_kill, args=(ds,))
    program.start()
    program.join(240)
    program.kill()
    assert program.exitcode == READ_AFTER_A_KILL


def shared(samples: list[dict[str, Any]]) -> bool:
    return all(tensor.is_shared() for tensor in leaves(default_collate(samples)))  # type: ignore[no-untyped-call]


def test_workers_exit_cleanly_after_an_early_break(local: Dataset) -> None:
    """A worker does not wait for the thread that sends its batches.

    If that thread still moved tensors into shared memory when the interpreter ends, torch would abort the process; so
    a batch must be there when the collate_fn returns.
    """
    loader = DataLoader(
        local.pytorch(), BATCH, collate_fn=shared, num_workers=2, multiprocessing_context="spawn", timeout=240
    )
    batches: Any = iter(loader)
    assert next(batches) is True
    workers = list(batches._workers)
    del batches
    assert [worker.exitcode for worker in workers] == [0, 0]
