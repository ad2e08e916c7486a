"""Batches that worker processes make on the CPU, on their way to a device."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Dataset, DeviceOptions, Image, ImageTransform, Shuffle, Workers
from penstock.device import Accelerator, SharedMemory

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = penstock.create(tmp_path_factory.mktemp("device") / "t", {"n": int, "p": Image("png", (32, 24, 3))})
    rng = np.random.default_rng(0)
    made.append({"n": range(200), "p": rng.integers(0, 256, (200, 32, 24, 3), np.uint8)})
    made.commit()
    return made


def shifted(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "n": batch["n"] + 1, "q": batch["p"].float() / 2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"batch_transform": shifted}], ids=["plain", "function"])
def test_processes_make_the_same_device_batches_as_threads(ds: Dataset, device: str, options: Any) -> None:
    placed = DeviceOptions(device=device, transform={"p": ImageTransform(hflip_prob=0.5)})
    common: dict[str, Any] = {"batch_size": 16, "shuffle": Shuffle(block_bytes=20_000, lanes=8, spread=1), **options}
    with (
        ds.pytorch(device=placed, num_workers=Workers(2, "thread"), **common) as here,
        ds.pytorch(device=placed, num_workers=Workers(4, "process"), **common) as there,
    ):
        held = list(islice(there, 2))  # the transfer of later batches has begun, and is abandoned
        there.set_epoch(0)
        held.clear()
        for one, other in zip(here, there, strict=True):
            assert list(one) == list(other)
            for name in one:
                assert one[name].device.type == other[name].device.type == device
                assert torch.equal(one[name], other[name])
            held.append(other)
        assert sum(len(batch["n"]) for batch in held) == 200
        if options:
            assert there.stats().processes == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_shared_memory_is_page_locked_until_it_is_dropped() -> None:
    accelerator = Accelerator(torch.device("cuda"))
    memory = SharedMemory.create(1 << 20)
    accelerator.pin(memory)
    tensor = torch.from_numpy(memory.bytes)
    assert tensor.is_pinned()
    tensor.fill_(7)
    assert int(tensor.to("cuda", non_blocking=True).sum()) == 7 * len(tensor)
    address = memory.address
    del tensor, memory
    again = SharedMemory.create(1 << 20)
    accelerator.pin(again)  # of the same address or another one
    assert torch.from_numpy(again.bytes).is_pinned(), address
