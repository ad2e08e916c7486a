"""Batches on a device are those of the processor, row for row: window, decoding, state and bad samples alike.

Where there is no GPU, the processor stands in for one: the same code moves, gathers and transforms.
"""

import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import penstock
from penstock import Column, Dataset, Image, Pixels, Tensor, Text
from penstock.device import Redo
from penstock.device._redone import _kernel
from penstock.errors import CorruptError, InvalidInputError

ROWS, SIDE = 600, 24
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BLOCKS: dict[str, Any] = {"shuffle": True, "shuffle_block": 40_000, "lanes": 4, "shuffle_spread": 2.0}
WINDOW: dict[str, Any] = {"device_memory": 64 << 20}
COLUMNS = ["image", "half", "label", "text", "_row_id"]
JPEG_TOLERANCE = 4
"""How far two decoders may be apart in a pixel."""


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
    made.delete([3, 4, 5, 400])
    made.commit()
    return made


def read(ds: Any, count: int | None = None, state: Any = None, **options: Any) -> list[dict[str, Any]]:
    """The batches, brought back; those of a device must have been on it."""
    device = options.get("device")
    with ds.pytorch(**{"batch_size": 32, "columns": COLUMNS, **options}) as loader:
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
    with ds.pytorch(batch_size=32, columns=["image"], device=device, **WINDOW, **options) as loader:
        rows = sum(len(batch["image"]) for batch in loader)
        assert loader.stats().device_bytes >= rows * SIDE * SIDE * 3
        assert not loader.stats().notes
    assert same(read(ds, device=device, **WINDOW, **options), read(ds, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_that_does_not_fit_stays_here_and_says_so(ds: Dataset, device: str) -> None:
    options = {**BLOCKS, "shuffle_spread": 40.0}
    with ds.pytorch(batch_size=32, device=device, device_memory=1 << 20, **options) as loader:
        next(iter(loader))
        assert any("the window stays in host memory" in note for note in loader.stats().notes)
        assert not loader.stats().device_bytes
    assert same(read(ds, device=device, device_memory=1 << 20, **options), read(ds, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_one_device_goes_on_with_another(ds: Dataset, device: str) -> None:
    whole = read(ds, **BLOCKS)
    for first, second in (({}, {"device": device, **WINDOW}), ({"device": device, **WINDOW}, {})):
        with ds.pytorch(batch_size=32, columns=COLUMNS, **BLOCKS, **first) as loader:
            list(islice(loader, 7))
            state = loader.state_dict()
        assert same(read(ds, state=state, **BLOCKS, **second), whole[7:])


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_are_held_stay_as_they_were(ds: Dataset, device: str) -> None:
    with ds.pytorch(batch_size=8, device=device, **WINDOW, **BLOCKS) as loader:
        held = list(loader)
    assert same([{"image": batch["image"].cpu()} for batch in held],
                [{"image": batch["image"]} for batch in read(ds, batch_size=8, **BLOCKS)])  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_transforms_of_samples_and_batches_come_before_the_device(ds: Dataset, device: str) -> None:
    def seen(value: dict[str, Any]) -> dict[str, Any]:
        assert value["image"].device.type == "cpu"
        return value | {"image": value["image"] + 1}

    for name in ("transform", "batch_transform"):
        options: dict[str, Any] = {name: seen, **BLOCKS}
        here = read(ds, **options)
        assert same(read(ds, device=device, **WINDOW, **options), here)
        assert not torch.equal(here[0]["image"], read(ds, 1, **BLOCKS)[0]["image"])


COLOURS: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}


@pytest.mark.parametrize(
    "pixels",
    [
        Pixels(crop=(20, 16), flip=0.5, dtype="bfloat16", **COLOURS),
        Pixels(crop=(20, 16), crop_at="center", dtype="float32", memory_format="channels_last", **COLOURS),
        Pixels(dtype="float16", channels_first=False, **COLOURS),
        Pixels(flip=0.5, memory_format="channels_last"),
        Pixels(),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_pixels_are_the_same_everywhere_and_whenever(ds: Dataset, device: str, pixels: Pixels) -> None:
    options = {"device_transform": {"image": pixels}, **BLOCKS}
    here = read(ds, **options)
    height, width = pixels.crop or (SIDE, SIDE)
    shape = (32, 3, height, width) if pixels.channels_first else (32, height, width, 3)
    assert here[0]["image"].shape == shape
    assert same(read(ds, device=device, **WINDOW, **options), here)
    assert same(read(ds, device=device, **WINDOW, **options, batch_size=32, num_workers=0), here)
    by_row = {int(row): value for batch in here for row, value in zip(batch["_row_id"], batch["image"], strict=True)}
    for batch in read(ds, device=device, **WINDOW, **options, batch_size=17):  # not by its place in a batch
        for row, value in zip(batch["_row_id"], batch["image"], strict=True):
            assert torch.equal(by_row[int(row)], value)


needs_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="only a GPU does things later than it is asked to")


@needs_gpu
def test_a_batch_is_the_users_however_far_their_stream_is_behind(ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 8, "columns": ["image", "label"], "drop_last": True, **BLOCKS}
    late: list[dict[str, torch.Tensor]] = []
    with ds.pytorch(device="cuda", **WINDOW, **options) as loader:
        for batch in loader:
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # some 10 ms, on the device; this thread goes on, and drops the batch
            late.append({name: values.clone() for name, values in batch.items()})
    assert same([{name: values.cpu() for name, values in batch.items()} for batch in late], read(ds, **options))


@needs_gpu
def test_a_gpu_does_it_in_one_pass() -> None:
    pictures = torch.randint(0, 256, (5, 3, 11, 13), dtype=torch.uint8, device="cuda").permute(0, 2, 3, 1)
    places = np.array([[0, 0, 0], [5, 6, 1], [1, 2, 0], [3, 0, 1], [2, 6, 0]], np.int32)
    scale = torch.tensor([0.1, 0.2, 0.3], device="cuda"), torch.tensor([-1.0, 0.5, 2.0], device="cuda")
    redo = Redo(size=(6, 7), places=places, scale=scale, dtype=torch.bfloat16, colours_first=True)
    assert torch.equal(redo(pictures), redo.plainly(pictures))
    assert _kernel(pictures.device) is not None


def test_pixels_do_what_they_say(ds: Dataset) -> None:
    plain = read(ds, 1, **BLOCKS)[0]["image"]
    cut = read(ds, 1, device_transform={"image": Pixels(crop=(10, 12), channels_first=False)}, **BLOCKS)[0]["image"]
    windows = plain.unfold(1, 10, 1).unfold(2, 12, 1).permute(0, 1, 2, 4, 5, 3)
    places = {
        tuple(index.tolist())
        for row in range(len(plain))
        for index in (windows[row] == cut[row]).all(-1).all(-1).all(-1).nonzero()
    }
    assert len(places) > 10, "crops are in many places, and each is a part of its picture"
    middle = Pixels(crop=(10, 12), crop_at="center", channels_first=False)
    assert torch.equal(read(ds, 1, device_transform={"image": middle}, **BLOCKS)[0]["image"], plain[:, 7:17, 6:18])
    flipped = read(ds, 1, device_transform={"image": Pixels(flip=1.0)}, **BLOCKS)[0]["image"]
    assert torch.equal(flipped, plain.flip(2).permute(0, 3, 1, 2))
    scaled = Pixels(dtype="float32", mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0), memory_format="channels_last")
    found = read(ds, 1, device_transform={"image": scaled}, **BLOCKS)[0]["image"]
    wanted = (plain.double() / 255 - torch.tensor([0.5, 0.25, 0.0])) / torch.tensor([0.5, 1.0, 2.0])
    assert torch.allclose(found.permute(0, 2, 3, 1).double(), wanted, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", DEVICES)
def test_a_function_of_the_batch_runs_on_the_device(ds: Dataset, device: str) -> None:
    def double(batch: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        assert batch["image"].device.type == device
        return batch | {"image": batch["image"].float() * 2, "drawn": torch.tensor(generator.random(), device=device)}

    found = read(ds, device=device, device_transform=double, **WINDOW, **BLOCKS)
    assert same(found, read(ds, device=device, device_transform=double, **BLOCKS))
    assert torch.equal(found[0]["image"], read(ds, 1, **BLOCKS)[0]["image"].float() * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_damaged_pages_are_replaced_by_the_same_rows(tmp_path: Path, device: str) -> None:
    made = penstock.create(tmp_path, {"x": Column(Tensor("uint8", (2048,)), page_bytes=16 << 10), "n": "int64"})
    made.append({"x": np.repeat(np.arange(400, dtype=np.uint8)[:, None] % 251, 2048, 1), "n": np.arange(400)})
    made.commit()
    path = max((tmp_path / "data").iterdir(), key=lambda file: file.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(300_000)
        file.write(b"\xff" * 64)
    ds = penstock.load(tmp_path)
    options = {"columns": ["x", "n"], "on_bad_sample": "replace", "bad_sample_limit": 50, **BLOCKS}
    here = read(ds, **options)
    assert any(batch["_pad"].any() for batch in here)
    assert same(read(ds, device=device, **WINDOW, **options), here)
    with pytest.raises(CorruptError, match="page"):
        read(ds, device=device, columns=["x", "n"], **WINDOW, **BLOCKS)


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_are_decoded_there_as_here(device: str) -> None:
    rng = np.random.default_rng(1)
    ramp = np.linspace(0, 255, 64)
    pictures = [
        np.stack([np.add.outer(ramp * a, ramp * b) / 2 for a, b in rng.random((3, 2))], -1).astype(np.uint8)
        for _ in range(60)
    ]
    ds = penstock.create("memory://", {"p": Column(Image("jpeg:90", (64, 64, 3)), nullable=True), "n": "int64"})
    ds.append([{"p": None if n % 9 == 0 else picture, "n": n} for n, picture in enumerate(pictures)])
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
def test_a_picture_that_is_none_is_replaced_by_the_same_row(device: str) -> None:
    file = io.BytesIO()
    Pillow.fromarray(np.full((16, 16, 3), 90, np.uint8)).save(file, "JPEG", quality=95)
    good = file.getvalue()
    ds = penstock.create("memory://", {"p": Image("jpeg:95", (16, 16, 3)), "n": "int64"})
    ds.append([{"p": good[:200] if n in (5, 17) else good, "n": n} for n in range(64)])
    ds.commit()
    options: dict[str, Any] = {"columns": ["p", "n"], "on_bad_sample": "replace", "shuffle": True, "batch_size": 16}
    here = read(ds, **options)
    for one, other in zip(read(ds, device=device, **options), here, strict=True):
        assert torch.equal(one["n"], other["n"])
        assert torch.equal(one["_pad"], other["_pad"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"device": "tpu"}, "device is something like"),
        ({"device": "meta"}, "not on 'meta'"),
        ({"device": "cuda:77"}, "no cuda:77|finds none"),
        ({"device_memory": 5}, "device_memory"),
        ({"device_transform": {"nothing": Pixels()}}, "'nothing'"),
    ],
)
def test_nonsense_is_refused(ds: Dataset, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        ds.pytorch(batch_size=4, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"crop": (0, 3)}, "crop"),
        ({"crop_at": "left"}, "crop_at"),
        ({"flip": 2.0}, "flip"),
        ({"dtype": "int8"}, "dtype"),
        ({"mean": (0.5,)}, "name a dtype"),
        ({"memory_format": "rows"}, "memory_format"),
    ],
)
def test_pixels_refuse_nonsense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        Pixels(**options)
