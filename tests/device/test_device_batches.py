"""Batches on a device equal those on the host, row for row: window, decoding, state and bad samples.

Without a GPU, the CPU stands in for one: the same code copies, gathers and transforms.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import penstock
from penstock import (
    BadSamples,
    Column,
    Dataset,
    DeviceOptions,
    Image,
    ImageTransform,
    Shuffle,
    Tensor,
    Text,
)
from penstock.device import FusedImageTransform
from penstock.device._fused_image import _kernel
from penstock.errors import CorruptError, InvalidInputError

ROWS, SIDE = 600, 24
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHUFFLE = Shuffle(block_bytes=40_000, lanes=4, spread=2.0)
BLOCKS: dict[str, Any] = {"shuffle": SHUFFLE}
COLUMNS = ["image", "half", "label", "text", "_row_id"]
JPEG_TOLERANCE = 4
"""The largest difference of a pixel between two decoders."""


@pytest.fixture(scope="module", params=["memory", "folder"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    place = "memory://" if request.param == "memory" else str(tmp_path_factory.mktemp("table"))
    made = penstock.create(
        place,
        {
            "image": Column(Tensor("uint8", (SIDE, SIDE, 3)), page_bytes=8 << 10),
            "half": Column(Tensor("bfloat16", (1024,)), nullable=True, page_bytes=8 << 10),
            "label": "int64",
            "text": Text(),
        },
    )
    rng = np.random.default_rng(0)
    for start in range(0, ROWS, 250):
        numbers = np.arange(start, min(start + 250, ROWS))
        half = list(np.repeat(numbers[:, None], 1024, 1).astype(ml_dtypes.bfloat16))
        made.append(
            {
                "image": rng.integers(0, 256, (len(numbers), SIDE, SIDE, 3), np.uint8),
                "half": [None if number % 7 == 0 else half[index] for index, number in enumerate(numbers)],
                "label": numbers,
                "text": [f"row {number}" for number in numbers],
            }
        )
    made.delete(positions=[3, 4, 5, 400])
    made.commit()
    return made


def window(device: str, **options: Any) -> DeviceOptions:
    """A device with memory for a window."""
    return DeviceOptions(device=device, memory=64 << 20, **options)


def transformed(ds: Dataset, transform: ImageTransform) -> torch.Tensor:
    """Images of the first batch after a transform."""
    device = DeviceOptions(device="cpu", transform={"image": transform})
    images: torch.Tensor = read(ds, 1, device=device, **BLOCKS)[0]["image"]
    return images


def read(
    ds: Any, count: int | None = None, state: Any = None, *, columns: Any = COLUMNS, **options: Any
) -> list[dict[str, Any]]:
    """The batches, copied to the host; checks that they were on the device."""
    device = options.get("device")
    device = device.device if isinstance(device, DeviceOptions) else device
    with ds.select(columns).pytorch(**{"batch_size": 32, **options}) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for batch in islice(loader, count):
            tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
            assert device is None or {tensor.device.type for tensor in tensors.values()} == {device}
            found.append({name: value.cpu() if name in tensors else value for name, value in batch.items()})
        return found


def same(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> bool:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            equal = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
            assert equal, name
    return True


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [BLOCKS, {"shuffle": False}], ids=["shuffled", "in order"])
def test_a_window_on_a_device_gives_the_same_rows(
    ds: Dataset, device: str, num_workers: int, shuffle: dict[str, Any]
) -> None:
    options = {**shuffle, "num_workers": num_workers}
    with ds.select(["image"]).pytorch(batch_size=32, device=window(device), **options) as loader:
        rows = sum(len(batch["image"]) for batch in loader)
        assert loader.stats().device_bytes >= rows * SIDE * SIDE * 3
        assert not loader.stats().notes
    assert same(read(ds, device=window(device), **options), read(ds, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_that_does_not_fit_stays_in_host_memory_with_a_note(ds: Dataset, device: str) -> None:
    options: dict[str, Any] = {"shuffle": replace(SHUFFLE, spread=40.0)}
    with ds.pytorch(batch_size=32, device=DeviceOptions(device=device, memory=1 << 20), **options) as loader:
        next(iter(loader))
        assert any("the window stays in host memory" in note for note in loader.stats().notes)
        assert not loader.stats().device_bytes
    assert same(read(ds, device=DeviceOptions(device=device, memory=1 << 20), **options), read(ds, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_resumes_on_another_device(ds: Dataset, device: str) -> None:
    whole = read(ds, **BLOCKS)
    here: dict[str, Any] = {}
    there: dict[str, Any] = {"device": window(device)}
    for first, second in ((here, there), (there, here)):
        with ds.select(COLUMNS).pytorch(batch_size=32, **BLOCKS, **first) as loader:
            list(islice(loader, 7))
            state = loader.state_dict()
        assert same(read(ds, state=state, **BLOCKS, **second), whole[7:])


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_are_held_stay_unchanged(ds: Dataset, device: str) -> None:
    with ds.pytorch(batch_size=8, device=window(device), **BLOCKS) as loader:
        held = list(loader)
    assert same([{"image": batch["image"].cpu()} for batch in held],
                [{"image": batch["image"]} for batch in read(ds, batch_size=8, **BLOCKS)])  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_sample_and_batch_transforms_run_before_the_copy_to_the_device(ds: Dataset, device: str) -> None:
    def seen(value: dict[str, Any]) -> dict[str, Any]:
        assert value["image"].device.type == "cpu"
        return value | {"image": value["image"] + 1}

    for name in ("transform", "batch_transform"):
        options: dict[str, Any] = {name: seen, **BLOCKS}
        here = read(ds, **options)
        assert same(read(ds, device=window(device), **options), here)
        assert not torch.equal(here[0]["image"], read(ds, 1, **BLOCKS)[0]["image"])


COLOURS: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}


@pytest.mark.parametrize(
    "transform",
    [
        ImageTransform(crop=(20, 16), hflip_prob=0.5, dtype="bfloat16", **COLOURS),
        ImageTransform(crop=(20, 16), crop_mode="center", dtype="float32", memory_format="channels_last", **COLOURS),
        ImageTransform(dtype="float16", channels_first=False, **COLOURS),
        ImageTransform(hflip_prob=0.5, memory_format="channels_last"),
        ImageTransform(),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_an_image_transform_gives_identical_results_on_every_device(
    ds: Dataset, device: str, transform: ImageTransform
) -> None:
    there = window(device, transform={"image": transform})
    here = read(ds, device=DeviceOptions(device="cpu", transform={"image": transform}), **BLOCKS)
    height, width = transform.crop or (SIDE, SIDE)
    shape = (32, 3, height, width) if transform.channels_first else (32, height, width, 3)
    assert here[0]["image"].shape == shape
    assert same(read(ds, device=there, **BLOCKS), here)
    assert same(read(ds, device=there, **BLOCKS, batch_size=32, num_workers=0), here)
    by_row = {int(row): value for batch in here for row, value in zip(batch["_row_id"], batch["image"], strict=True)}
    for batch in read(ds, device=there, **BLOCKS, batch_size=17):  # independent of the position in a batch
        for row, value in zip(batch["_row_id"], batch["image"], strict=True):
            assert torch.equal(by_row[int(row)], value)


needs_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU, which works asynchronously")


@needs_gpu
def test_a_batch_stays_unchanged_while_the_users_stream_lags(ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 8, "drop_last": True, **BLOCKS}
    columns = ["image", "label"]
    late: list[dict[str, torch.Tensor]] = []
    with ds.select(columns).pytorch(device=window("cuda"), **options) as loader:
        for batch in loader:
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # about 10 ms on the device; this thread continues and drops the batch
            late.append({name: values.clone() for name, values in batch.items()})
    assert same(
        [{name: values.cpu() for name, values in batch.items()} for batch in late], read(ds, columns=columns, **options)
    )


@needs_gpu
def test_the_fused_kernel_equals_eager_torch() -> None:
    images = torch.randint(0, 256, (5, 3, 11, 13), dtype=torch.uint8, device="cuda").permute(0, 2, 3, 1)
    crops = np.array([[0, 0, 0], [5, 6, 1], [1, 2, 0], [3, 0, 1], [2, 6, 0]], np.int32)
    scale = torch.tensor([0.1, 0.2, 0.3], device="cuda"), torch.tensor([-1.0, 0.5, 2.0], device="cuda")
    transform = FusedImageTransform(size=(6, 7), crops=crops, scale=scale, dtype=torch.bfloat16, channels_first=True)
    assert torch.equal(transform(images), transform.eager(images))
    assert _kernel(images.device) is not None


def test_an_image_transform_crops_flips_and_normalises(ds: Dataset) -> None:
    plain = read(ds, 1, **BLOCKS)[0]["image"]
    cut = read(
        ds,
        1,
        device=DeviceOptions(device="cpu", transform={"image": ImageTransform(crop=(10, 12), channels_first=False)}),
        **BLOCKS,
    )[0]["image"]
    windows = plain.unfold(1, 10, 1).unfold(2, 12, 1).permute(0, 1, 2, 4, 5, 3)
    places = {
        tuple(index.tolist())
        for row in range(len(plain))
        for index in (windows[row] == cut[row]).all(-1).all(-1).all(-1).nonzero()
    }
    assert len(places) > 10, "crops have many offsets, and each is a part of its image"
    middle = ImageTransform(crop=(10, 12), crop_mode="center", channels_first=False)
    assert torch.equal(
        transformed(ds, middle),
        plain[:, 7:17, 6:18],
    )
    flipped = read(
        ds, 1, device=DeviceOptions(device="cpu", transform={"image": ImageTransform(hflip_prob=1.0)}), **BLOCKS
    )[0]["image"]
    assert torch.equal(flipped, plain.flip(2).permute(0, 3, 1, 2))
    scaled = ImageTransform(dtype="float32", mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0), memory_format="channels_last")
    found = transformed(ds, scaled)
    wanted = (plain.double() / 255 - torch.tensor([0.5, 0.25, 0.0])) / torch.tensor([0.5, 1.0, 2.0])
    assert torch.allclose(found.permute(0, 2, 3, 1).double(), wanted, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_transform_runs_on_the_device(ds: Dataset, device: str) -> None:
    def double(batch: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        assert batch["image"].device.type == device
        return batch | {"image": batch["image"].float() * 2, "drawn": torch.tensor(generator.random(), device=device)}

    found = read(ds, device=window(device, transform=double), **BLOCKS)
    assert same(found, read(ds, device=DeviceOptions(device=device, transform=double), **BLOCKS))
    assert torch.equal(found[0]["image"], read(ds, 1, **BLOCKS)[0]["image"].float() * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_damaged_pages_are_replaced_by_the_same_rows_as_on_the_host(tmp_path: Path, device: str) -> None:
    made = penstock.create(tmp_path, {"x": Column(Tensor("uint8", (2048,)), page_bytes=16 << 10), "n": "int64"})
    made.append({"x": np.repeat(np.arange(400, dtype=np.uint8)[:, None] % 251, 2048, 1), "n": np.arange(400)})
    made.commit()
    path = max((tmp_path / "data").iterdir(), key=lambda file: file.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(300_000)
        file.write(b"\xff" * 64)
    ds = penstock.load(tmp_path)
    options = {"columns": ["x", "n"], "bad_samples": BadSamples(limit=50), **BLOCKS}
    here = read(ds, **options)
    assert any(batch["_pad"].any() for batch in here)
    assert same(read(ds, device=window(device), **options), here)
    with pytest.raises(CorruptError, match="page"):
        read(ds, device=window(device), columns=["x", "n"], **BLOCKS)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_decodes_images_as_the_host_does(device: str) -> None:
    rng = np.random.default_rng(1)
    ramp = np.linspace(0, 255, 64)
    images = [
        np.stack([np.add.outer(ramp * a, ramp * b) / 2 for a, b in rng.random((3, 2))], -1).astype(np.uint8)
        for _ in range(60)
    ]
    ds = penstock.create("memory://", {"p": Column(Image("jpeg:90", (64, 64, 3)), nullable=True), "n": "int64"})
    ds.append([{"p": None if n % 9 == 0 else image, "n": n} for n, image in enumerate(images)])
    ds.commit()
    sizes: list[dict[str, Any]] = [{}, {"image_size": (48, 40)}]
    for options in sizes:
        theirs = read(ds, columns=["p", "n"], device=device, shuffle=True, **options)
        for one, other in zip(theirs, read(ds, columns=["p", "n"], shuffle=True, **options), strict=True):
            assert torch.equal(one["n"], other["n"])
            assert torch.equal(one["p_mask"], other["p_mask"])
            apart = (one["p"].int() - other["p"].int()).abs().max()
            assert apart <= (JPEG_TOLERANCE if not options else 16), "resizing differs more than decoding"


@pytest.mark.parametrize("device", DEVICES)
def test_a_damaged_image_is_replaced_by_the_same_row_as_on_the_host(device: str) -> None:
    file = io.BytesIO()
    Pillow.fromarray(np.full((16, 16, 3), 90, np.uint8)).save(file, "JPEG", quality=95)
    good = file.getvalue()
    ds = penstock.create("memory://", {"p": Image("jpeg:95", (16, 16, 3)), "n": "int64"})
    ds.append([{"p": good[:200] if n in (5, 17) else good, "n": n} for n in range(64)])
    ds.commit()
    options: dict[str, Any] = {"columns": ["p", "n"], "bad_samples": "replace", "shuffle": True, "batch_size": 16}
    here = read(ds, **options)
    for one, other in zip(read(ds, device=device, **options), here, strict=True):
        assert torch.equal(one["n"], other["n"])
        assert torch.equal(one["_pad"], other["_pad"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"device": "tpu"}, "device is a torch device"),
        ({"device": "meta"}, "not on 'meta'"),
        ({"device": "cuda:77"}, "no cuda:77|finds none"),
        ({"device": DeviceOptions(device="cpu", memory=5)}, r"DeviceOptions\(memory=…\)"),
        ({"device": DeviceOptions(device="cpu", transform={"nothing": ImageTransform()})}, "'nothing'"),
    ],
)
def test_invalid_device_options_are_refused(ds: Dataset, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        ds.pytorch(batch_size=4, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"crop": (0, 3)}, "crop"),
        ({"crop_mode": "left"}, "crop_mode"),
        ({"hflip_prob": 2.0}, "hflip_prob"),
        ({"dtype": "int8"}, "dtype"),
        ({"mean": (0.5,)}, "pass a dtype"),
        ({"memory_format": "rows"}, "memory_format"),
    ],
)
def test_an_image_transform_refuses_invalid_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        ImageTransform(**options)
