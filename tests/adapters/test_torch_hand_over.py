"""Batches that workers of the standard DataLoader send: what arrives is what was read, whatever is done on the way."""

import copy
import gc
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, default_collate

import penstock
from penstock import Dataset, Image, Tensor
from penstock.device import Outbox, opened, sent_rows
from tests.servers import new_place

ROWS, WIDTH, BATCH = 160, 2048, 16  # a batch of 128 KiB is large enough to be handed over

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module", params=["folder", "s3"])
def ds(request: pytest.FixtureRequest) -> Dataset:
    """Rows that are picked from local files, and rows that are gathered from pages."""
    place = new_place(request.param)
    ds = penstock.create(place.uri, {"n": Tensor("int64"), "x": Tensor("float32", (WIDTH,))}, options=place.options)
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
def test_batches_that_are_kept_stay_as_they_are(ds: Dataset, method: str) -> None:
    """More of them than a worker has memory for, beyond the worker's end, and with the dataset used here before."""
    rows = ds.pytorch()
    kept_here = rows.__getitems__(list(range(BATCH)))
    order = [np.random.default_rng(epoch).permutation(ROWS).tolist() for epoch in range(15)]
    wanted = [numbers[start : start + BATCH] for numbers in order for start in range(0, ROWS, BATCH)]
    loader = DataLoader(rows, batch_sampler=wanted, num_workers=1, multiprocessing_context=method, timeout=60)
    kept = list(loader)
    assert [check(batch) for batch in kept] == wanted
    kept[0]["x"] += 1
    assert torch.equal(kept[0]["x"][:, 0], torch.tensor(wanted[0]).float() + 1)
    assert [check(batch) for batch in kept[1:]] == wanted[1:]
    assert [float(row["x"][-1]) for row in kept_here] == list(range(BATCH))


def test_a_batch_crosses_without_a_copy(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a batch was stacked")

    monkeypatch.setattr(sent_rows, "default_collate", refused)
    loader = DataLoader(ds.pytorch(), BATCH, shuffle=True, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert sorted(number for batch in loader for number in check(batch)) == list(range(ROWS))


def test_memory_is_used_again_when_both_sides_are_done() -> None:
    outbox = Outbox()
    first = outbox.empty((300, 1000), np.uint8)
    address = first.ctypes.data
    parcel = outbox.post(address, first.nbytes)
    assert parcel is not None
    assert outbox.post(address, first.nbytes) is None  # it is on its way
    first[:] = 7
    arrived = opened(parcel)
    del first
    assert outbox.empty((300, 1000), np.uint8).ctypes.data != address
    part = arrived[1000:2000]
    del arrived
    assert outbox.empty((300, 1000), np.uint8).ctypes.data != address
    assert (part == 7).all()
    del part
    again = [outbox.empty((300, 1000), np.uint8) for _ in range(3)]
    assert address in [array.ctypes.data for array in again]
    assert outbox.post(np.empty(300_000, np.uint8).ctypes.data, 300_000) is None


def test_memory_that_nobody_needs_is_let_go() -> None:
    outbox = Outbox()
    before = len(os.listdir("/proc/self/fd"))
    many = [outbox.empty((1 << 20,), np.uint8) for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 64
    many.clear()
    for size in (1 << 20, 1 << 22, 1 << 20):
        outbox.empty((size,), np.uint8)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 6


def test_a_copy_of_this_process_gives_nothing_back() -> None:
    outbox = Outbox()
    array = outbox.empty((1 << 20,), np.uint8)
    address = array.ctypes.data
    parcel = outbox.post(address, array.nbytes)
    assert parcel is not None
    held = [opened(parcel)]
    del array
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert outbox.empty((1 << 20,), np.uint8).ctypes.data != address


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


def copied(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return default_collate(copy.deepcopy(pickle.loads(pickle.dumps(samples))))  # type: ignore[no-any-return]


def untouched(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples


def twice(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    return {"one": batch, "other": {"x": batch["x"]}}


COLLATES = [doubled, written_to, backwards, half, replaced, reshaped, transposed, copied, untouched, twice]


@pytest.mark.parametrize("collate", COLLATES, ids=lambda function: function.__name__)
def test_a_collate_of_ones_own_does_what_it_does_here(ds: Dataset, collate: Callable[..., Any]) -> None:
    order = np.random.default_rng(3).permutation(ROWS).reshape(-1, BATCH).tolist()
    here = list(DataLoader(ds.pytorch(), batch_sampler=order, collate_fn=collate))
    there = list(DataLoader(ds.pytorch(), batch_sampler=order, collate_fn=collate, num_workers=2, timeout=60))
    assert len(here) == len(there)
    for expected, found in zip(here, there, strict=True):
        for one, other in zip(leaves(expected), leaves(found), strict=True):
            assert type(one) is type(other) is torch.Tensor
            assert torch.equal(one, other)


def leaves(batch: Any) -> list[torch.Tensor]:
    return list(torch.utils._pytree.tree_leaves(batch))


def test_rows_that_are_drawn_again_and_again(ds: Dataset) -> None:
    rows = ds.pytorch()
    torch.manual_seed(1)
    loader = DataLoader(
        rows, BATCH, sampler=RandomSampler(rows, replacement=True, num_samples=5 * ROWS), num_workers=2, timeout=60
    )
    assert sum(len(check(batch)) for batch in loader) == 5 * ROWS


def test_pictures_are_decoded_where_they_are_sent_from() -> None:
    table = penstock.create("memory://", {"p": Image(shape=(64, 64, 3)), "n": int})
    table.append({"p": [np.full((64, 64, 3), 2 * k, np.uint8) for k in range(40)], "n": list(range(40))})
    table.commit()
    loader = DataLoader(table.pytorch(), 10, shuffle=True, num_workers=1, timeout=60)
    for batch in loader:
        assert torch.equal(batch["p"][:, 5, 5, 0].long(), 2 * batch["n"])


def test_a_worker_that_is_killed_is_an_error(ds: Dataset) -> None:
    loader = DataLoader(ds.pytorch(), 4, num_workers=1, timeout=60)
    batches = iter(loader)
    check(next(batches))
    os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        for _ in batches:
            pass
