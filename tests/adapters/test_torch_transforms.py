"""Transforms and collations: what they get, what becomes of it, and random numbers that belong to the row."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Boxes, Column, Dataset, Shuffle, Tensor, Text
from penstock.adapters.torch import TorchFormatter
from penstock.engine import BatchFormatter, Loader
from penstock.engine.workers._slots import SlotMemory
from tests.adapters.transforms import doubled, noisy, noisy_batch, reshaped

ROWS = 300


@pytest.fixture(scope="module")
def ds() -> Dataset:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=256), "t": Text(), "b": Boxes()})
    made.append([{"n": k, "t": f"row {k}", "b": [[k] * 4] * (k % 3)} for k in range(ROWS)])
    made.commit()
    made.delete(positions=[0, 100])
    made.commit()
    return made


def noise(loader: Loader, steps: int | None = None) -> dict[int, list[float]]:
    """The random numbers that each row got."""
    found: dict[int, list[float]] = {}
    for batch in islice(loader, steps):
        found.update(zip(batch["n"].tolist(), batch["noise"].tolist(), strict=True))
    return found


def test_a_transform_gets_a_sample_of_tensors(ds: Dataset) -> None:
    seen: list[dict[str, Any]] = []

    def look(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append(sample)
        return {"n": sample["n"]}

    for _ in ds[:5].select(["n", "t", "b", "_row_id"]).pytorch(batch_size=2, transform=look):
        pass
    assert {int(sample["n"]) for sample in seen} == {1, 2, 3, 4, 5}
    for sample in seen:
        n = int(sample["n"])
        assert (sample["n"].shape, sample["n"].dtype) == ((), torch.int64)
        assert sample["t"] == f"row {n}"
        assert torch.equal(sample["b"], torch.full((n % 3, 4), float(n)))
        assert int(sample["_row_id"]) == n


def test_a_transform_may_change_names_and_shapes(ds: Dataset) -> None:
    for batch in ds.pytorch(batch_size=32, transform=reshaped, shuffle=True):
        assert set(batch) == {"n", "grid"}
        assert batch["grid"].shape[1:] == (3, 5)
        assert torch.equal(batch["grid"][:, 1, 1], batch["n"].float())


def test_a_transform_may_return_anything_that_torch_can_stack(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=32, transform=lambda sample: (sample["n"].float(), int(sample["n"]) % 2, "s"))
    for x, parity, text in loader:
        assert torch.equal(x.long() % 2, parity)
        assert list(text) == ["s"] * len(x)


def test_samples_that_cannot_be_stacked_are_collated_as_without_a_transform(ds: Dataset) -> None:
    plain = list(ds.pytorch(batch_size=16))
    for ragged in ("nested", "pad", "list"):
        for batch, expected in zip(ds.pytorch(batch_size=16, transform=doubled, collate_fn=ragged), plain, strict=True):
            assert torch.equal(batch["n"], 2 * expected["n"])
            assert batch["t"] == expected["t"]
            counts = [k % 3 for k in expected["n"].tolist()]
            if ragged == "nested":
                assert [len(boxes) for boxes in batch["b"].unbind()] == counts
            elif ragged == "pad":
                assert batch["b"].shape == (len(counts), 2, 4)
                assert batch["b_shape"][:, 0].tolist() == counts
            else:
                assert [len(boxes) for boxes in batch["b"]] == counts


def test_a_batch_transform_gets_the_whole_batch(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=32, batch_transform=lambda batch: (batch["n"].sum(), len(batch["t"])))
    totals = list(loader)
    assert sum(int(total) for total, _ in totals) == sum(range(ROWS)) - 100
    assert [count for _, count in totals] == [32] * 9 + [10]


def test_a_transform_runs_before_a_batch_transform(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=32, transform=doubled, collate_fn=lambda samples: [int(s["n"]) for s in samples],
                        batch_transform=lambda numbers: [number + 1 for number in numbers])  # fmt: skip
    assert sorted(n for numbers in loader for n in numbers) == [2 * k + 1 for k in range(1, ROWS) if k != 100]


def test_a_collate_fn_gets_the_samples_of_a_batch(ds: Dataset) -> None:
    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(set(sample) == {"n", "t", "b"} for sample in samples)
        return {"n": [int(sample["n"]) for sample in samples], "boxes": torch.cat([sample["b"] for sample in samples])}

    for batch in ds.pytorch(batch_size=32, collate_fn=collate, shuffle=True):
        assert batch["boxes"][:, 0].tolist() == [n for n in batch["n"] for _ in range(n % 3)]


def test_random_values_depend_on_seed_epoch_and_row(ds: Dataset) -> None:
    def loader(**options: Any) -> Loader:
        made: Loader = ds.select(["n"]).pytorch(**{"batch_size": 32, "transform": noisy, **options})
        return made

    first = noise(loader())
    assert len(first) == ROWS - 2
    assert len({tuple(numbers) for numbers in first.values()}) == ROWS - 2
    for options in (
        {"batch_size": 7},
        {"num_workers": 0},
        {"num_workers": 5, "shuffle": True},
        {"shuffle": Shuffle(lanes=4, block_bytes=512), "memory_budget": 1 << 20},
        {"bad_samples": "replace"},
    ):
        assert noise(loader(**options)) == first
    ranks = [noise(loader(distributed=(rank, 3), drop_last=True)) for rank in range(3)]
    for found in ranks:
        assert found.items() <= first.items()
    again = loader()
    assert noise(again) == first
    second = noise(again)
    assert all(second[n] != first[n] for n in first)
    assert all(found != first[n] for n, found in noise(loader(shuffle=Shuffle(seed=1))).items())
    part = noise(ds[50:90].select(["n"]).pytorch(batch_size=8, transform=noisy))
    assert part.items() <= first.items()


def test_a_resumed_run_repeats_its_random_values(ds: Dataset) -> None:
    options: dict[str, Any] = {"transform": noisy, "shuffle": Shuffle(block_bytes=512, lanes=4)}
    view = ds.select(["n"])
    whole = view.pytorch(batch_size=16, **options)
    epochs = [noise(whole), noise(whole)]
    broken = view.pytorch(batch_size=16, **options)
    broken.set_epoch(1)
    before = noise(broken, 7)
    resumed = view.pytorch(batch_size=5, num_workers=0, **options)
    resumed.load_state_dict(broken.state_dict())
    after = noise(resumed)
    assert not set(before) & set(after)
    assert before | after == epochs[1]


def test_random_values_of_a_batch_depend_on_its_first_row(ds: Dataset) -> None:
    found = [batch["noise"].tolist() for batch in ds.pytorch(batch_size=32, batch_transform=noisy_batch)]
    assert found == [batch["noise"].tolist() for batch in ds.pytorch(batch_size=32, batch_transform=noisy_batch)]
    assert len({tuple(numbers) for numbers in found}) == len(found)


class Flip:
    """Transforms are often objects, or modules."""

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return {"n": sample["n"], "noise": torch.tensor([generator.random()])}


class Module(torch.nn.Module):
    def forward(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": sample["n"] * 3}


def test_objects_and_modules_are_transforms_too(ds: Dataset) -> None:
    assert noise(ds.pytorch(batch_size=9, transform=Flip())) == noise(ds.pytorch(batch_size=50, transform=Flip()))
    found = [n for batch in ds.pytorch(batch_size=9, transform=Module()) for n in batch["n"].tolist()]
    assert found == [3 * k for k in range(1, ROWS) if k != 100]


def test_a_transform_with_optional_arguments_gets_no_generator(ds: Dataset) -> None:
    def scaled(sample: dict[str, Any], by: int = 10) -> dict[str, Any]:
        return {"n": sample["n"] * by}

    [batch] = ds[:3].pytorch(batch_size=9, transform=scaled)
    assert batch["n"].tolist() == [10, 20, 30]


@pytest.mark.parametrize("kind", [TorchFormatter, BatchFormatter])
def test_results_of_functions_are_stacked_in_the_slot(kind: type[BatchFormatter]) -> None:
    """Which the loop reads: they are not copied there."""
    slot = np.full(1 << 12, 7, np.uint8)
    formatter = kind(lambda sample: sample, None, None, "list", {}, tolerant=False)
    formatter.empty = SlotMemory(slot).allocate
    values: dict[str, Any] = {
        "x": np.arange(60, dtype=np.float32).reshape(4, 5, 3),
        "y": np.arange(4),
        "z": np.arange(4) > 1,
    }
    for fits in (True, True, False):  # 312 of 4096 bytes, and then more than there is
        values = values if fits else values | {"x": np.zeros((4, 400), np.float32)}
        batch = {name: np.asarray(each) for name, each in formatter(dict(values), None).items()}
        assert all(
            np.array_equal(batch[name], each) and batch[name].dtype == each.dtype for name, each in values.items()
        )
        assert np.may_share_memory(batch["x"], slot) == fits
    assert (slot[-64:] == 7).all()
