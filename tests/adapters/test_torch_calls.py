"""The calls that users of PyTorch know work as they are written."""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import penstock
from penstock import Dataset, Shuffle, Tensor
from penstock.errors import InvalidInputError, NotFoundError, PenstockWarning

ROWS = 500

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 8 worker processes:UserWarning"),
]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A robot's table in a folder, loaded anew."""
    place = tmp_path_factory.mktemp("robot") / "telemetry"
    made = penstock.create(
        place, {"camera_rgb": Tensor("uint8", (8, 8, 3)), "joint_angles": Tensor("float32", (7,)), "n": int}
    )
    n = np.arange(ROWS)
    camera = np.broadcast_to((n % 256).astype(np.uint8)[:, None, None, None], (ROWS, 8, 8, 3))
    made.append({"camera_rgb": camera, "joint_angles": np.outer(n, np.arange(7)).astype(np.float32), "n": n})
    made.commit()
    return penstock.load(place)


@contextmanager
def process_group_of_one(folder: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def checked(batches: Iterable[Any]) -> tuple[list[int], list[int]]:
    """The numbers of all rows and the sizes of all batches; every column belongs to its row."""
    numbers: list[int] = []
    sizes: list[int] = []
    for batch in batches:
        n = batch["n"]
        assert (batch["camera_rgb"] == (n % 256).to(torch.uint8).reshape(-1, 1, 1, 1)).all()
        assert torch.equal(batch["joint_angles"], torch.outer(n, torch.arange(7)).float())
        numbers += n.tolist()
        sizes.append(len(n))
    return numbers, sizes


def test_sixteen_workers_and_shuffle(ds: Dataset) -> None:
    numbers, sizes = checked(ds.pytorch(num_workers=16, shuffle=True))
    assert sizes == [64] * 7 + [52]
    assert numbers != list(range(ROWS))
    assert sorted(numbers) == list(range(ROWS))


def test_batches_of_128(ds: Dataset) -> None:
    loader = ds.pytorch(num_workers=16, batch_size=128)
    numbers, sizes = checked(loader)
    assert sizes == [128, 128, 128, 116]
    assert len(loader) == 4
    assert numbers == list(range(ROWS))


def test_distributed_in_a_group_of_one(ds: Dataset, tmp_path: Path) -> None:
    with process_group_of_one(tmp_path):
        for choice in (True, None, dist.group.WORLD):
            numbers, _ = checked(ds.pytorch(num_workers=8, distributed=choice))
            assert numbers == list(range(ROWS))


def test_distributed_without_a_group_says_what_to_do(ds: Dataset) -> None:
    with pytest.raises(InvalidInputError, match=r"init_process_group\(\) first, or pass distributed=\(rank"):
        ds.pytorch(num_workers=8, distributed=True)


def test_a_loader_created_before_its_group_warns_once(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            ds.pytorch(batch_size=50)
    assert [warning.category for warning in caught] == [PenstockWarning]
    assert caught[0].filename == __file__
    told = r"every rank will read all rows: .* WORLD_SIZE=4, .* after init_process_group\(\), or pass distributed="
    with pytest.warns(PenstockWarning, match=told):
        ds.pytorch(batch_size=50)


@pytest.mark.parametrize("told", ["1", "", "many"])
def test_a_loader_of_one_rank_does_not_warn(ds: Dataset, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", told)
    ds.pytorch(batch_size=50)


def test_a_loader_with_explicit_ranks_does_not_warn(
    ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    ds.pytorch(batch_size=50, distributed=False)
    ds.pytorch(batch_size=50, distributed=(1, 4))
    with process_group_of_one(tmp_path):
        ds.pytorch(batch_size=50)


def test_prefetch_factor(ds: Dataset) -> None:
    numbers, _ = checked(ds.pytorch(num_workers=8, prefetch_factor=4))
    assert numbers == list(range(ROWS))


def test_the_standard_loader(ds: Dataset) -> None:
    loader = DataLoader(ds.pytorch(), batch_size=64, shuffle=True, num_workers=8)
    numbers, sizes = checked(loader)
    assert sizes == [64] * 7 + [52]
    assert numbers != list(range(ROWS))
    assert sorted(numbers) == list(range(ROWS))
    for batch in loader:
        images, angles = batch["camera_rgb"].to("cpu"), batch["joint_angles"].to("cpu")
        assert images.shape[1:] == (8, 8, 3)
        assert angles.dtype == torch.float32
        break


def test_the_standard_loader_with_a_transform(ds: Dataset) -> None:
    def half(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": sample["camera_rgb"][:4].float() / 2, "n": sample["n"]}

    for batch in DataLoader(ds.pytorch(transform=half), batch_size=64, shuffle=True, num_workers=2):
        assert batch["image"].shape[1:] == (4, 8, 3)
        assert torch.equal(batch["image"][:, 0, 0, 0], (batch["n"] % 256) / 2)


def test_a_loader_cannot_be_indexed_and_a_row_dataset_can(ds: Dataset) -> None:
    with pytest.raises(TypeError, match=r"cannot be indexed.*dataset of rows"):
        ds.pytorch(batch_size=4)[0]
    assert ds.pytorch()[3]["n"] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"num_workers": -1},
        {"prefetch_factor": 0},
        {"batch_size": 4, "memory_budget": 1000},
        {"batch_size": 4, "collate_fn": "torn"},
        {"batch_size": 4, "bad_samples": "cry"},
        {"batch_size": 4, "shuffle": "well"},
        {"distributed": (2, 2)},
        {"distributed": (0, 2, 3)},
        {"distributed": "all"},
        {"batch_size": 4, "progress": "film"},
        {"batch_size": 4, "decode": {"n": bytes}},
        {"batch_size": 4, "image_size": (0, 4)},
    ],
    ids=str,
)
def test_invalid_options_are_refused_at_once(ds: Dataset, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(reversed(options)) + r"|'n'|init_process_group"):
        ds.pytorch(**options)


def test_numpy_integers_are_accepted_as_options(ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": np.int64(100), "num_workers": np.int8(1)}
    shuffle: dict[str, Any] = {"seed": np.uint32(7), "lanes": np.int8(2)}
    with ds.pytorch(shuffle=Shuffle(**shuffle), **options) as loader:
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert sorted(checked(loader)[0]) == list(range(ROWS))
        json.dumps(loader.state_dict())
        for epoch in (-1, "one", None):
            with pytest.raises(InvalidInputError, match="an epoch is a number"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]


def test_a_missing_column_is_named(ds: Dataset) -> None:
    with pytest.raises(NotFoundError, match="camera_rbg"):
        ds.select(["camera_rbg"])
    for batches in ({}, {"batch_size": 4}):
        with pytest.raises(NotFoundError, match="camera_rbg"):
            ds.pytorch(decode={"camera_rbg": False}, **batches)  # type: ignore[call-overload]


def test_torch_is_an_optional_dependency(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import penstock\n"
        f"ds = penstock.create({str(tmp_path / 't')!r}, {{'n': int}})\n"
        "ds.pytorch(batch_size=2)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "InvalidInputError: PyTorch is not installed: pip install 'penstock[torch]'" in found.stderr
