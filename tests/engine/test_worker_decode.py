"""Decoding in worker processes: the same values as in threads, and batches that are never overwritten."""

import gc
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import soundfile
import torch

import penstock
from penstock import Audio, Bytes, Column, Dataset, Image, Mask, Shuffle, Tensor, Workers
from penstock.errors import SampleError
from tests.adapters import transforms
from tests.engine.watch import open_files

ROWS = 90
SIDE = 96
"""Batches of three such images are large enough to be sent without a copy."""
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=32 << 10, lanes=3), "batch_size": 8}


def noise(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def deep(seed: int) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(noise(seed, 8, 8).astype(np.uint16) * 257).save(stream, "png")
    return stream.getvalue()


def printed(seed: int) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(noise(seed, 3 + seed % 4, 5, 4), "CMYK").save(stream, "jpeg")
    return stream.getvalue()


def sound(seed: int) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, noise(seed, 50 + seed).astype(np.int16), 8000, format="WAV")
    return stream.getvalue()


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    schema = {
        "n": int,
        "jpeg": Column(Image("jpeg", (SIDE, SIDE, 3)), page_bytes=16 << 10),
        "png": Column(Image("png", (8, 8, 3)), nullable=True),
        "gray": Image("png", (8, 8)),
        "any": Image("png"),
        "print": Image("jpeg"),
        "mask": Mask("png", (4, 4)),
        "sound": Column(Audio("wav"), nullable=True),
        "raw": Tensor("uint8", (SIDE, SIDE)),
        "data": Bytes(),
    }
    made = penstock.create(tmp_path_factory.mktemp("decode") / "t", schema)
    made.append([
        {
            "n": k,
            "jpeg": noise(k, SIDE, SIDE, 3),
            "png": None if k % 7 == 0 else noise(k, 8, 8, 3),
            "gray": deep(k) if k % 2 else noise(k, 8, 8),
            "any": noise(k, 3 + k % 4, 5, 3),
            "print": printed(k),
            "mask": noise(k, 4, 4) % 3,
            "sound": None if k % 5 == 0 else sound(k),
            "raw": noise(k, SIDE, SIDE),
            "data": bytes([k]) * (k + 1),
        }
        for k in range(ROWS)
    ])  # fmt: skip
    made.commit()
    return made


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.is_nested == other.is_nested
        assert all(map(torch.equal, one.unbind(), other.unbind())) if one.is_nested else torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list):
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode": {"data": transforms.length_and_process, "jpeg": False, "sound": False}},
        {"decode": False},
        {"image_size": (8, 12), "transform": transforms.same, "collate_fn": "pad"},
    ],
    ids=["all", "some", "none", "scaled"],
)
def test_processes_decode_the_same_values_as_threads(ds: Dataset, options: Any) -> None:
    here = list(ds.pytorch(**MIXED, **options))
    with ds.pytorch(num_workers=Workers(1, "process"), **MIXED, **options) as remote:
        for found, expected in zip(remote, here, strict=True):
            if isinstance(options.get("decode"), dict):
                lengths, processes = zip(*found.pop("data"), strict=True)
                assert list(lengths) == [length for length, _ in expected.pop("data")]
                assert os.getpid() not in processes
            assert_same(found, expected)


def test_held_batches_are_not_overwritten(ds: Dataset) -> None:
    """Even more batches than the worker has shared memory for."""
    columns = ["n", "jpeg", "raw"]
    gc.collect()  # files of earlier tests
    image = {batch["n"].item(): (batch["jpeg"], batch["raw"]) for batch in ds.select(columns).pytorch(batch_size=1)}
    with ds.select(columns).pytorch(
        batch_size=8, shuffle=True, num_workers=Workers(1, "process"), memory_budget=4 << 20
    ) as loader:
        held = [batch for _ in range(14) for batch in loader]
        assert 2 * len(held) > 256
        assert open_files() < 256 + 64
        for batch in held:
            for n, jpeg, raw in zip(batch["n"].tolist(), batch["jpeg"], batch["raw"], strict=True):
                assert torch.equal(jpeg, image[n][0][0])
                assert torch.equal(raw, image[n][1][0])
            batch["jpeg"] += 1  # a batch is the user's to write to
        files = []
        for _ in range(4):
            del held
            held = list(loader)
            files.append(open_files())
        assert files[-1] <= files[1] + 2, "memory is reused"
        assert torch.equal(held[-1]["jpeg"][0], image[held[-1]["n"][0].item()][0][0])


def test_a_batch_outlives_its_process(ds: Dataset) -> None:
    with ds.select(["n", "jpeg"]).pytorch(batch_size=8, num_workers=Workers(1, "process")) as loader:
        first, second = list(loader)[:2]
    for batch, start in ((first, 0), (second, 8)):
        assert torch.equal(batch["jpeg"], next(iter(ds[start : start + 8].pytorch(batch_size=8)))["jpeg"])
        batch["jpeg"].zero_()


def test_bad_images_are_reported_and_replaced_as_in_threads(tmp_path: Path) -> None:
    table = penstock.create(tmp_path / "t", {"n": int, "p": Image("jpeg", (16, 16, 3))})
    broken = penstock.codecs.ImageCodec("jpeg").encode(noise(0, 16, 16, 3))[:300]
    table.append([{"n": k, "p": broken if k in (3, 4, 11, 30) else noise(k, 16, 16, 3)} for k in range(40)])
    table.commit()
    with (
        table.pytorch(batch_size=4, num_workers=Workers(1, "process")) as loader,
        pytest.raises(SampleError, match="column 'p': cannot decode jpeg") as caught,
    ):
        list(loader)
    assert "in row 3 of the table (row id 3)" in caught.value.__notes__

    def read(**options: Any) -> tuple[list[Any], list[Any]]:
        with table.pytorch(batch_size=8, shuffle=True, bad_samples="replace", **options) as loader:
            batches = [(batch["n"].tolist(), batch["_pad"].tolist(), batch["p"].sum().item()) for batch in loader]
            return batches, sorted((bad.row_id, bad.reason) for bad in loader.stats().bad_samples)

    for transform in (None, transforms.fails_at_threes):
        here = read(num_workers=1, transform=transform)
        assert read(num_workers=Workers(1, "process"), transform=transform) == here
        assert {row_id for row_id, _ in here[1]} >= {3, 4, 11, 30}


def test_decode_time_does_not_count_as_transform_time(ds: Dataset) -> None:
    with ds.select(["jpeg"]).pytorch(batch_size=8, num_workers=Workers(1, "process")) as loader:
        for _ in range(3):
            list(loader)
        stages = loader.stats().stages
    assert 0 <= stages["transform"].busy_s < stages["worker"].busy_s


def ends_of(data: bytes) -> Any:
    return np.array([len(data), *data[:1], *data[-1:]])


@pytest.mark.parametrize("large", [False, True])
def test_blobs_nulls_and_nothing_at_all_are_decoded_beside_other_values(tmp_path: Path, large: bool) -> None:
    """Values lie in shared memory, blobs in objects of their own; the values of the first block take no memory."""
    values: list[bytes | None] = [bytes([k]) * (k * 37) if k >= 20 and k % 5 else None for k in range(80)]
    values[30:33] = [b"", b"", bytes([9]) * (17 << 20) if large else b"x"]
    made = penstock.create(tmp_path / "t", {"data": Column(Bytes(), nullable=True), "n": int})
    for first in range(0, len(values), 20):
        made.append({"data": values[first : first + 20], "n": range(first, first + 20)})
    made.commit()

    def read(workers: Any) -> list[Any]:
        with made.numpy(batch_size=6, shuffle=False, decode={"data": ends_of}, num_workers=workers) as loader:
            return [
                (int(n), None if value is None else value.tolist())
                for batch in loader
                for n, value in zip(batch["n"], batch["data"], strict=True)
            ]

    one = read(0)
    assert read(Workers(2, "process")) == one
    assert dict(one)[31] == [0]
    assert dict(one)[32] == ([17 << 20, 9, 9] if large else [1, 120, 120])
